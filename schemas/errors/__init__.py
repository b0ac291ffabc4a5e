"""All errors, each with a stable code. Imports only text."""
