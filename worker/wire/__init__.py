"""Frames and operators' requests. Imports only: execution, registration, ledger, slots."""
