"""Gangs and standing sets, the caller's side. Imports only: leases, calls, pools, transport."""
