"""Held slots: leases and selections. Imports only: calls, pools, transport, routing."""
