"""Slots and their holders. Pure. Imports only: settings."""
