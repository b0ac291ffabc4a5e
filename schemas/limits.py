"""Limits of the wire, in one place. A violation is an error before anything is sent."""

from __future__ import annotations

from typing import Final

WIRE_VERSION: Final = 1
"""Version of frames and records. Frames of another version are refused with a clear error; of a record, a reader
uses the fields that it knows."""

MAX_TRACEPARENT_CHARS: Final = 128
"""More than twice what a W3C `traceparent` takes today."""
MAX_NAME_CHARS: Final = 128
"""Longest pool, worker, endpoint or method name."""

MAX_TOKEN_CHARS: Final = 64
"""Longest lease token or request id."""

MAX_SLOTS: Final = 1_000_000
"""Maximum number of slots of a worker or a lease."""

MIN_TTL_S: Final = 1.0
"""Shortest lease: the server expires keys in whole seconds, at least one."""

MAX_TTL_S: Final = 86_400.0
"""Longest lease without a renewal."""

MAX_DEADLINE_S: Final = 30 * 86_400.0
"""Longest deadline of a call."""

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and maps in a body; `[[]]` is two levels deep."""

MAX_CHECKED: Final = 10_000
"""Maximum number of task ids in the CHECKs of one message: the worker spends some microseconds on each, without a
break."""


MAX_ATTEMPTS: Final = 10_000


MAX_BACKOFF_S: Final = 86_400.0


MAX_RESULT_TTL_S: Final = 365 * 86_400.0
