"""A nats-server as a child process. Imports only: settings."""
