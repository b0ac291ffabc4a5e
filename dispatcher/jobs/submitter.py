"""Publishing durable tasks, until the stream has acknowledged them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ...bus.port.bus import Published, PublishRefused, StorageUnavailable, Stream
from ...runtime.backoff import Backoff
from ...runtime.clock import Environment
from ...schemas.deadline import current_deadline
from ...schemas.errors.base import Disconnected, GanglineError
from ...schemas.errors.tasks import InvalidSchedule
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..calls.call import CallOptions
from .message import TaskMessage, task_message
from .storage import TaskStreams

SUBMIT_TIMEOUT_S: Final = 30.0
"""How long a submission is tried again while the stream does not acknowledge it; no later than the deadline of the task
that submits. The server knows a `Nats-Msg-Id` again for much longer, so that no try makes a second task."""
TRY_S: Final = 5.0
"""How long one try waits for the acknowledgement."""
AT_ONCE: Final = 512
"""Submissions of `many` that are under way together."""
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
T = TypeVar("T")


class Submitted(NamedTuple):
    """A task that is stored."""

    message: TaskMessage
    sequence: int | None
    """In the stream. None: it ended before; nothing was published."""


class Submitter:
    """Submits tasks. One per client."""

    def __init__(self, streams: TaskStreams, ambient: Environment) -> None:
        self._streams = streams
        self._ambient = ambient
        self._tasks: Stream | None = None

    async def one(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        *,
        part: int | None = None,
    ) -> Submitted:
        """Submit a task; returns when it is stored.

        Raises:
            GanglineError: see Client.submit.
        """
        if not tracer.enabled:
            return await self._submit(target, args, kwargs, options, part, NO_SPAN)
        attributes = {"gangline.endpoint": target.partition(".")[0]}
        with tracer.span(f"gangline.submit {target}", kind="producer", attributes=attributes) as span:
            return await self._submit(target, args, kwargs, options, part, span)

    async def _submit(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        part: int | None,
        span: Span,
    ) -> Submitted:
        ambient = self._ambient
        message = task_message(
            self._streams.names,
            target,
            args,
            kwargs,
            options,
            token=ambient.token(),
            wall=ambient.wall(),
            trace=span.traceparent(),
            part=part,
        )
        if span is not NO_SPAN:
            span.set(gangline__job=message.job)
        keyed = options.submit is not None and options.submit.idempotency_key is not None
        return Submitted(message, await self._stored(message, look=keyed and not message.repeats))

    async def many(
        self, target: str, arguments: Sequence[Mapping[str, Any]], options: CallOptions
    ) -> list[Submitted | GanglineError]:
        """Submit a task with each of the arguments; in order, what was stored, or why it was not."""

        async def attempt(part: int) -> Submitted | GanglineError:
            try:
                return await self.one(target, (), arguments[part], options, part=part)
            except GanglineError as error:
                return error

        return await at_once(len(arguments), attempt)

    async def _stored(self, message: TaskMessage, *, look: bool) -> int | None:
        """Have it in the stream, once; its sequence there, or None if its result is there already."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + SUBMIT_TIMEOUT_S
        inherited = current_deadline()
        if inherited is not None:
            give_up_at = min(give_up_at, inherited)
        backoff, sent = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S), False
        while True:
            try:
                if look and await self._ended(message):
                    return None
                return (await self._publish(message, min(TRY_S, max(0.001, give_up_at - loop.time())))).sequence
            except PublishRefused as error:
                if message.scheduled:
                    raise InvalidSchedule(f"the server refused the schedule: {error.message}") from error
                raise
            except (StorageUnavailable, Disconnected) as error:
                sent = sent or error.may_have_started
                if loop.time() + backoff.delay_s >= give_up_at:
                    raise _not_stored(message, error, sent) from error
            await asyncio.sleep(backoff.next_s() * (0.5 + self._ambient.random.random() / 2))

    async def _publish(self, message: TaskMessage, timeout_s: float) -> Published:
        stream = self._tasks
        if stream is None:
            stream = self._tasks = await self._streams.tasks()
        return await stream.publish(message.subject, message.data, headers=message.headers, timeout_s=timeout_s)

    async def _ended(self, message: TaskMessage) -> bool:
        """Whether a job of this idempotency key has a result, longer ago perhaps than the stream remembers."""
        results = await self._streams.results()
        return await results.get(self._streams.names.result_key(message.job)) is not None


async def at_once(count: int, attempt: Callable[[int], Awaitable[T]]) -> list[T]:
    """What `attempt` gives for each number from 0, in order; AT_ONCE of them at the same time."""
    found: list[T] = []
    for start in range(0, count, AT_ONCE):
        found += await asyncio.gather(*map(attempt, range(start, min(start + AT_ONCE, count))))
    return found


def _not_stored(message: TaskMessage, error: GanglineError, sent: bool) -> StorageUnavailable:
    certain = "it may be stored all the same: submit it with an idempotency_key to try again safely"
    return StorageUnavailable(
        f"{message.target} was not acknowledged ({error.message}); {certain if sent else 'nothing was stored'}",
        may_have_started=sent,
        details={"job": message.job},
    )
