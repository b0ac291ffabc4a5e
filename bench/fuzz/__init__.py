"""Hostile input to every subject of a running system: `make fuzz`."""
