"""Combines pools, routes, sets and leases. Imports only: gangs, calls, leases, traffic, pools."""
