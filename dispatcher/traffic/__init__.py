"""Routes: the pools of an endpoint. Imports only: calls, routing."""
