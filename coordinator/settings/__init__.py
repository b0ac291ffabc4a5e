"""Settings. Imports no other room."""
