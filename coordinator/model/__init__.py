"""Gangs, their states, events and effects. Pure. Imports only: settings."""
