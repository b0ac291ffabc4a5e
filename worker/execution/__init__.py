"""Runs tasks. Imports only: its executors, ledger, pool, context, slots."""
