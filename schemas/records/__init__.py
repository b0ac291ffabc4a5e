"""Stored records. Imports only names, wire and errors."""
