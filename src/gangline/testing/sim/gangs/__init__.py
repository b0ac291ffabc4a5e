"""Checks of gangs. Imports only: history."""
