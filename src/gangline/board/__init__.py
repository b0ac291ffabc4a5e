"""The board: one read model of a running system, for the command line, `gangline top` and the console.

`board_core.Board` is pure: entries of the ledger, events and answers go in, rows and deltas with a revision come out.
`feed.BoardFeed` connects it to NATS.
"""

from .board_core import Board, Delta, Table, apply
from .feed import BoardFeed

__all__ = ["Board", "BoardFeed", "Delta", "Table", "apply"]
