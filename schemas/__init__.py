"""The wire format: every message, subject, key, error and limit. Imports nothing else of this package."""
