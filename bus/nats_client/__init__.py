"""One connection to a nats-server, written for speed. Imports only: settings, port."""
