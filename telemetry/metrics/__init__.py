"""What is counted, and its instruments. Imports only: the rest of telemetry."""
