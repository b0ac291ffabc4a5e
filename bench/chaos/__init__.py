"""Chaos: the whole system in real processes, faults drawn from a seed, and a judge of all records."""
