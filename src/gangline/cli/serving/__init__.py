"""Services that the command line runs."""
