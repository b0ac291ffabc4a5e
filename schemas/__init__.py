"""The wire: every message, subject, key, error and bound. Imports nothing else of this package."""
