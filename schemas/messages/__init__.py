"""Requests and replies. Imports only: records, names, wire, errors."""
