"""Shared by all commands: options, output, a session."""
