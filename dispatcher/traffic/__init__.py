"""Routes: which pools serve an endpoint. Imports only: calls, routing."""
