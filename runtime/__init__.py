"""The runtime kit of every process: clocks, timers, background tasks, failure detection, life cycles. Imports only:
schemas, telemetry."""
