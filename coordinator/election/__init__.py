"""One leader a shard. Imports only: settings."""
