"""Processes that the command line runs."""
