"""Gangs and standing sets, for those who call them. Imports only: leases, calls, pools, transport."""
