"""The buckets, read and written. Imports only: model, sharding."""
