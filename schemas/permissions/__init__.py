"""Permissions of each role, and the server configuration for them. Imports only names."""
