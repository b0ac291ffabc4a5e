"""Gangs and tasks under faults: real processes are killed, frozen and overtaken, on a real nats-server.

`python -m bench.faults.gangs --repetitions 20` runs all scenarios and prints one table; see bench.faults.gangs.
"""
