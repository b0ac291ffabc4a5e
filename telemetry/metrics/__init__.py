"""Metrics and their instruments. Imports only the rest of telemetry."""
