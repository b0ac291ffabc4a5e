"""Reads, changes and displays workers, gangs, tasks and routes for the commands."""
