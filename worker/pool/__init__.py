"""Declarations: pools, tasks, health checks. Imports only: context, settings."""
