"""For whole systems of real processes: starting them, what they record, and whether it obeys the laws.

Shared by `gangline demo`, `bench.faults` and `bench.chaos`. May import everything but the command line's commands.
"""
