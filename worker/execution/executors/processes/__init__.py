"""Tasks in child processes. Imports only: the other executors."""
