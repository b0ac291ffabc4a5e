"""Consuming a stream, whatever the server. Imports only: port."""
