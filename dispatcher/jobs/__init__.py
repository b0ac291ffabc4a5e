"""Submitted tasks, the client's half. Imports only: calls, schemas."""
