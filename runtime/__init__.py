"""What every process needs and no Python library gives: clocks, timers, tasks. Imports only: schemas, telemetry."""
