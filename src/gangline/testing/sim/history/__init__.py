"""The trace of a run, its violations, and its faults. Imports none of the other packages."""
