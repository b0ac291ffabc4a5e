"""Chooses the worker of a request. Pure. Imports only: schemas."""
