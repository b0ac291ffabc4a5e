"""Names of NATS headers that Gangline reads and writes."""

from __future__ import annotations

from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

ERROR: Final = "Nats-Service-Error"
"""One line of text; its presence says that the body is an error (JSON or msgpack, see errors.to_wire)."""
ERROR_CODE: Final = "Nats-Service-Error-Code"
"""The error's `status`."""

TIMEOUT: Final = "Gangline-Timeout"
"""On a call: seconds (a decimal number) that the caller will wait. Travels as the deadline."""
KEY: Final = "Gangline-Key"
"""On a call: session or shard key; the same key goes to the same worker while it lives."""
MODEL: Final = "Gangline-Model"
"""On a call: model id for multiplexed workers."""
IDEMPOTENT: Final = "Gangline-Idempotent"
"""On a call: `true` lets the router send it again when the outcome of a try is unknown."""
WORKER: Final = "Gangline-Worker"
"""On an answer: `<pool>.<worker>` that ran it."""
