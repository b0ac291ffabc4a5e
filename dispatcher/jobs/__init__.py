"""Submitted tasks, the client's side. Imports only: calls, schemas."""
