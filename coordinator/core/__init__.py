"""Decisions about gangs. Pure. Imports only: scheduling, model."""
