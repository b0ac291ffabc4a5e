"""Settings of coordinators. Imports no other room."""
