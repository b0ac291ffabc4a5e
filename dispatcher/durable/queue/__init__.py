"""Runs one queue. Imports only: the layers below."""
