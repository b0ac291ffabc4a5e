"""One module per system: the no-op task, written as in its documentation, and how it is submitted.

Each runs in that system's environment, twice: in the worker started by the system's own command, and in `near`.
"""
