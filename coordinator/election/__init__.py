"""One leader per shard. Imports only: settings."""
