"""Plays a plan: the processes, faults, and checks at rest. May import all the other packages."""
