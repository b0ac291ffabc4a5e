"""Reads and writes the buckets. Imports only: model, sharding."""
