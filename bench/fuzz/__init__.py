"""Hostile input on all doors of a running system: `make fuzz`."""
