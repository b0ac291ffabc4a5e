"""Slots that are held. Imports only: calls, pools, transport, routing."""
