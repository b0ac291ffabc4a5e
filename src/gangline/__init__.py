"""Gangline: lease a slot on a worker over NATS before you send to it."""
