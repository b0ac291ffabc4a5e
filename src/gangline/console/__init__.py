"""The web console: pages over the board, live by server-sent events. Needs the extra `gangline[console]`.

It reads with one NATS connection, for which the role `observer` is enough. Actions are off; with them, it has a second
connection of another user. So a console without actions cannot act, whatever is wrong with it: the server refuses.
"""

from .app import Console, app
from .settings import ACTIONS, ConsoleSettings

__all__ = ["ACTIONS", "Console", "ConsoleSettings", "app"]
