"""Commands that run a service."""
