"""Checks of calls and leases. Imports only: history."""
