"""The processes and their clients."""
