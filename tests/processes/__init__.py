"""Real processes for tests, without paying for the same imports in each.

`ForkServer` is the near end, `fork_server` the program at the far end.
"""

from .forked import ForkedProcess, ForkServer

__all__ = ["ForkServer", "ForkedProcess"]
