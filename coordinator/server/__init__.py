"""Requests in, effects out. Imports only: core, ledger, sharding."""
