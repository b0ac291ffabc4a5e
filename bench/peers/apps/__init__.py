"""One module for each system: the no-op task, as its own documentation has it, and how it is submitted.

Each runs in that system's environment, twice: in the worker that its own command starts, and in `near`.
"""
