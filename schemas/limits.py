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
MAX_REQUEST_INFO_CHARS: Final = 256
"""Longest `Nats-Request-Info` that is remembered with its account. The server's texts are shorter, and the same on all
requests of a connection until it measures the round trip time again."""

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

MAX_CONTAINERS: Final = 32_768
"""Maximum number of lists and maps in a body that carries arguments, and in an envelope of frames, unless
`GANGLINE_MAX_CONTAINERS` says otherwise. To decode so many takes some 10 ms; a million of them, which fit into one
megabyte, would stall a process for half a second."""

MAX_REQUEST_BYTES: Final = 65_536
"""Largest body of a request that carries no arguments: all but calls, tasks and `dispatch`."""

MAX_REQUEST_ITEMS: Final = 8192
"""Maximum number of values in such a body."""

MAX_RECORD_ITEMS: Final = 32_768
"""About the maximum number of values in a record of a bucket, without the results of tasks."""

MAX_SCHEMA_BYTES: Final = 65_536
"""Largest JSON Schema of one task. A larger one is not offered."""

MAX_SCHEMAS_BYTES: Final = 524_288
"""Largest answer with schemas of tasks; more are asked for again, by their hashes."""

MAX_CHECKED: Final = 10_000
"""Maximum number of task ids in the CHECKs of one message: the worker spends some microseconds on each, without a
break."""


MAX_LISTED_JOBS: Final = 500
"""Jobs in one answer of a dispatcher that lists them."""
MAX_WAITED_JOBS: Final = 128
"""Maximum number of jobs in one request that waits for results."""

MAX_RESULT_WAIT_S: Final = 30.0
"""Maximum time until such a request is answered. Servers let dispatchers answer within a minute."""

MAX_LINE_TASKS: Final = 200
"""Groups of equal tasks ahead of a job that are told in order; those further back are added up."""
MAX_ATTEMPTS: Final = 10_000


MAX_BACKOFF_S: Final = 86_400.0


MAX_RESULT_TTL_S: Final = 365 * 86_400.0
