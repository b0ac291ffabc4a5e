"""Stores records of tasks. Imports only: core, messages, policies."""
