"""Submits durable tasks: creates their messages, and publishes them until the stream has acknowledged them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from ...bus.port.bus import NotPermitted, Publication, StorageUnavailable, Stream, StreamMessage
from ...runtime.clock import Environment
from ...runtime.timers import exponential_s
from ...schemas.deadline import current_deadline
from ...schemas.errors.base import Disconnected, GanglineError, InvalidArguments, InvalidSettings
from ...schemas.limits import MAX_ATTEMPTS
from ...schemas.names import Names, job_of_tenant, short_job, split_target, split_tenant
from ...schemas.records.jobs import JobState
from ...schemas.schedules import check_schedule
from ...schemas.text import brief
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ...schemas.wire.plain_values import wire_arguments
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..calls.call import CallOptions, SubmitOptions, check_header_text
from .storage import DUPLICATES_S, TaskStreams, result_in


def write_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> tuple[bytes, Format]:
    """The body and its format: JSON, so that humans can read the stream; msgpack if JSON would lose something (bytes,
    infinities, keys that are not strings).

    Args:
        where: the task, for error texts.

    Raises:
        InvalidArguments: there are both positional and named arguments, which a body cannot represent, or one that
            cannot be sent.
    """
    if type(kwargs) is not dict and not isinstance(kwargs, Mapping):
        raise InvalidArguments(f"{where}: {brief(kwargs)} is not a dict of named arguments")
    if args and kwargs:
        raise InvalidArguments(
            "a submitted task takes named or positional arguments, not both: its body is an object or an array. "
            "Name them all"
        )
    value: Any = kwargs or args
    if not value:
        return b"", Format.JSON
    if _TEXT.issuperset(map(type, kwargs)) and codec.ATOMS.issuperset(map(type, kwargs.values() or args)):
        packed = codec.pack_atoms(value)
        if packed is not None:
            if codec.loses_in_json(list(args or kwargs.values())):
                return packed, Format.MSGPACK
            return codec.to_json(value), Format.JSON
        # What msgpack cannot represent, JSON should not: named below.
    by_place, named = wire_arguments(args, kwargs, where)
    value = named or by_place
    fmt = Format.MSGPACK if codec.loses_in_json(value) else Format.JSON
    return codec.encode(value, fmt), fmt


_TEXT: Final = frozenset((str,))
MIN_TIMEOUT_S: Final = 0.001
_NOTHING: Final = SubmitOptions()


class TaskMessage(NamedTuple):
    """A message to publish, and its job."""

    endpoint: str
    method: str
    job: str
    subject: str
    data: bytes
    headers: dict[str, str]
    scheduled: bool = False
    """Whether it is held until its time."""
    repeats: bool = False
    """Whether it is a recurring schedule; each run is a job of its own."""
    result_kept: bool = True
    keyed: bool = False
    """Whether it has an idempotency key, from which others may know its id."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"


def job_of_key(target: str, key: str, tenant: str = "") -> str:
    """The job id of an idempotency key. Keys belong to their tenant (empty: Gangline's own account)."""
    owner = f"{tenant}\n" if tenant else ""
    return _id_of_key(split_target(target)[0], f"{owner}{target}\n{key}")


def job_of_declared(endpoint: str, method: str) -> str:
    """The id of the schedule that a task declares with `cron=`: that of a key that nobody would submit with."""
    return _id_of_key(endpoint, f"{endpoint}.{method}\n\0declared")


def _id_of_key(endpoint: str, text: str) -> str:
    return f"{endpoint}.i{sha256(text.encode()).hexdigest()[:26]}"


def task_message(
    names: Names,
    target: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CallOptions,
    *,
    token: str,
    wall: float,
    trace: str | None,
    part: int | None = None,
    tenant: str = "",
) -> TaskMessage:
    """The message of a submission.

    Args:
        token: unguessable; the job's id, unless there is an idempotency key.
        wall: Unix time.
        trace: `traceparent` of the submitter.
        part: number of the task, if several are submitted with one idempotency key.
        tenant: whose task it is; empty: Gangline's own account.

    Raises:
        InvalidName, InvalidSettings, InvalidRequest: it is invalid.
    """
    endpoint, method = split_target(target)
    submit = options.submit or _NOTHING
    data, fmt = write_arguments(args, kwargs, target)
    key = submit.idempotency_key
    if key is not None and part is not None:
        key = f"{key}/{part}"
    # Names start with a letter, so they look neither like command-line options nor like sequences. With the endpoint
    # before them, no task of another endpoint can have them.
    # A schedule's key has no tenant: its id was like that before ids had, and its dispatcher still finds it.
    job = f"{endpoint}.j{token}" if key is None else job_of_key(target, key, "" if submit.cron is not None else tenant)
    if tenant:
        job = job_of_tenant(job, endpoint, tenant)
    fields = _fields(options, submit)
    fields[headers.ACCEPT if fmt is Format.JSON else CONTENT_TYPE] = Format.MSGPACK.value
    if trace is not None:
        fields[headers.TRACEPARENT] = trace
    fields[headers.MESSAGE_ID] = job
    fields[headers.JOB] = job
    moment = _moment(submit, wall)
    if key is None and moment is None and submit.cron is None:
        fields[headers.FIRST] = "true"
    if moment is not None:
        fields[headers.DELAY] = rfc3339(moment)
        if options.deadline_s is not None:
            fields[headers.DEADLINE] = number(max(0.0, moment.timestamp() - wall) + options.deadline_s)
    if submit.cron is not None:
        fields[headers.CRON] = check_schedule(submit.cron)
        if submit.time_zone is not None:
            fields[headers.TIME_ZONE] = submit.time_zone
        if submit.idempotency_key is not None:
            fields[headers.SCHEDULE_NAME] = submit.idempotency_key
        # If it is declared again with another pattern or other arguments, it is not a duplicate but replaces the first.
        fields[headers.MESSAGE_ID] = f"{job}-{sha256(_what(fields, data)).hexdigest()[:16]}"
    return TaskMessage(
        endpoint=endpoint,
        method=method,
        job=job,
        subject=names.task(endpoint, method),
        data=data,
        headers=fields,
        scheduled=moment is not None or submit.cron is not None,
        repeats=submit.cron is not None,
        result_kept=submit.result_ttl_s != 0,
        keyed=key is not None,
    )


def _what(fields: Mapping[str, str], data: bytes) -> bytes:
    """Everything that identifies a recurring task."""
    told = {name: value for name, value in fields.items() if name not in (headers.MESSAGE_ID, headers.TRACEPARENT)}
    return repr((sorted(told.items()), data)).encode()


def _fields(options: CallOptions, submit: SubmitOptions) -> dict[str, str]:
    """Headers for the options. Most submissions have none."""
    if options.plain and options.timeout_s is None:
        return {}
    if options.labels:
        raise InvalidSettings("labels are for calls: the workers of a submitted task are those of its endpoint's route")
    if submit.ordered and options.key is None:
        raise InvalidSettings("ordered needs a key: order is kept among the tasks of one key")
    if options.max_attempts is not None and options.max_attempts > MAX_ATTEMPTS:
        raise InvalidSettings(f"max_attempts is {options.max_attempts}, it must be at most {MAX_ATTEMPTS} here")
    if options.timeout_s is not None and options.timeout_s < MIN_TIMEOUT_S:
        raise InvalidSettings(f"timeout_s is {options.timeout_s!r}, it must be at least {MIN_TIMEOUT_S} here")
    check_header_text("key", options.key)
    check_header_text("model", options.model)
    fields: dict[str, str] = {}
    for name, text in (
        (headers.KEY, options.key),
        (headers.MODEL, options.model),
        (headers.POOL, options.pool),
        (headers.TIMEOUT, options.timeout_s),
        (headers.MAX_ATTEMPTS, options.max_attempts),
        (headers.PRIORITY, submit.priority),
        (headers.DEADLINE, options.deadline_s),
        (headers.BACKOFF, submit.backoff_s),
        (headers.RESULT_TTL, submit.result_ttl_s),
    ):
        if text is not None:
            fields[name] = text if isinstance(text, str) else number(text)
    if options.idempotent is not None:
        fields[headers.IDEMPOTENT] = "true" if options.idempotent else "false"
    if submit.ordered:
        fields[headers.ORDERED] = "true"
    if submit.events:
        fields[headers.EVENTS] = "true"
    return fields


def number(value: float) -> str:
    """A number for a header: without an exponent."""
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")


def _moment(submit: SubmitOptions, wall: float) -> datetime | None:
    """When it may start; None: at once, or recurring."""
    if submit.at is not None:
        return submit.at
    if submit.delay_s:
        return datetime.fromtimestamp(wall, UTC) + timedelta(seconds=submit.delay_s)
    return None


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def moment_of(schedule: str) -> float | None:
    """Unix time of an `@at` schedule; None for those that repeat."""
    if not schedule.startswith("@at "):
        return None
    try:
        return datetime.fromisoformat(schedule[4:].strip()).timestamp()
    except ValueError:
        return None


SUBMIT_TIMEOUT_S: Final = 30.0
"""How long an unacknowledged submission is repeated, at most until the deadline of the submitting task. The server
remembers its `Nats-Msg-Id` for much longer, so that no second task results."""
TRY_S: Final = 5.0
"""How long each attempt waits for the acknowledgement."""
AT_ONCE: Final = 512
"""Concurrent submissions of `many`."""
_MOST_TAKEN: Final = 8
"""How often a submission whose `Nats-Msg-Id` was used by others is sent with another one, before it is sent without."""
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
T = TypeVar("T")


class Submitted(NamedTuple):
    """A task that is stored."""

    message: TaskMessage
    sequence: int | None
    """Its sequence in the stream. None: the job ended before, and nothing was published."""
    created: bool = True
    """Whether nobody had submitted a job with its idempotency key before, as far as is known."""


class Submitter:
    """Submits tasks. One per client."""

    def __init__(self, streams: TaskStreams, ambient: Environment) -> None:
        self._streams = streams
        self._ambient = ambient
        self._tasks: Stream | None = None

    def one(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        *,
        part: int | None = None,
    ) -> Coroutine[Any, Any, Submitted]:
        """Submit a task; returns when it is stored.

        Raises:
            GanglineError: see Client.submit.
        """
        submit = self._traced if tracer.enabled else self._submit
        return submit(target, args, kwargs, options, part)

    async def _traced(
        self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: CallOptions, part: int | None
    ) -> Submitted:
        with tracer.span(f"gangline.submit {target}", kind="producer", attributes=_attributes(target)) as span:
            return await self._submit(target, args, kwargs, options, part, span)

    async def _submit(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        part: int | None,
        span: Span = NO_SPAN,
    ) -> Submitted:
        known = self._streams.known_tenant
        tenant = await self._ask_tenant() if known is None else known
        message = self._message(target, args, kwargs, options, part, span, tenant)
        return await self._stored(message)

    def _message(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        part: int | None,
        span: Span,
        tenant: str,
    ) -> TaskMessage:
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
            tenant=tenant,
        )
        if span is not NO_SPAN:
            span.set(gangline__job=message.job)
        return message

    async def many(
        self, target: str, arguments: Sequence[Mapping[str, Any]], options: CallOptions
    ) -> list[Submitted | GanglineError]:
        """Submit a task with each of the arguments; results and errors in order. AT_ONCE messages are sent in one
        turn."""
        found: list[Submitted | GanglineError] = []
        known = self._streams.known_tenant
        tenant = await self._ask_tenant() if known is None else known
        for start in range(0, len(arguments), AT_ONCE):
            made = [
                self._made(target, arguments[part], options, part, tenant)
                for part in range(start, min(start + AT_ONCE, len(arguments)))
            ]
            found += await self._store_all(made)
        return found

    def _made(
        self, target: str, kwargs: Mapping[str, Any], options: CallOptions, part: int, tenant: str
    ) -> TaskMessage | GanglineError:
        """The message; its span ends when it is made, since all are stored together."""
        try:
            if not tracer.enabled:
                return self._message(target, (), kwargs, options, part, NO_SPAN, tenant)
            with tracer.span(f"gangline.submit {target}", kind="producer", attributes=_attributes(target)) as span:
                return self._message(target, (), kwargs, options, part, span, tenant)
        except GanglineError as error:
            return error

    async def _store_all(self, made: Sequence[TaskMessage | GanglineError]) -> list[Submitted | GanglineError]:
        """Store messages that were never sent together; the others, and those that are not stored then, one by one."""
        found: list[Submitted | GanglineError | None] = [
            one if isinstance(one, GanglineError) else None for one in made
        ]
        failed: dict[int, GanglineError] = {}
        tasks = [(index, one) for index, one in enumerate(made) if isinstance(one, TaskMessage)]
        first = [(index, message) for index, message in tasks if headers.FIRST in message.headers]
        messages = [Publication(one.subject, one.data, one.headers) for _, one in first]
        try:
            stream = await self._streams.tasks()
            outcomes = await stream.publish_many(messages, timeout_s=_try_s(self._give_up_at()))
        except GanglineError as error:
            outcomes = [error] * len(first)
        for (index, message), outcome in zip(first, outcomes, strict=True):
            if isinstance(outcome, (StorageUnavailable, Disconnected)):
                failed[index] = outcome
            elif isinstance(outcome, GanglineError):
                found[index] = outcome
            elif not outcome.duplicate:
                found[index] = Submitted(message, outcome.sequence)

        async def settle(index: int, message: TaskMessage) -> None:
            try:
                found[index] = await self._stored(message, failed.get(index))
            except GanglineError as error:
                found[index] = error

        await asyncio.gather(*(settle(index, message) for index, message in tasks if found[index] is None))
        return [one for one in found if one is not None]

    async def _ask_tenant(self) -> str:
        """TaskStreams.tenant, asked for as long as a submission may take."""
        give_up_at, failures = self._give_up_at(), 0
        while True:
            try:
                return await self._streams.tenant()
            except (StorageUnavailable, Disconnected) as error:
                pause_s = exponential_s(_PAUSE_FIRST_S, _PAUSE_MAX_S, failures)
                if asyncio.get_running_loop().time() + pause_s >= give_up_at:
                    raise StorageUnavailable(f"nothing was stored: {error.message}") from error
                failures += 1
                await asyncio.sleep(pause_s)

    @staticmethod
    def _give_up_at() -> float:
        at = asyncio.get_running_loop().time() + SUBMIT_TIMEOUT_S
        inherited = current_deadline()
        return at if inherited is None else min(at, inherited)

    async def _stored(self, message: TaskMessage, failed: GanglineError | None = None) -> Submitted:
        """Store it in the stream once.

        Args:
            failed: the error of an attempt that was made before.
        """
        loop = asyncio.get_running_loop()
        give_up_at, look = self._give_up_at(), message.keyed and not message.repeats
        failures, sent, taken, fields = 0, False, 0, message.headers
        if failed is not None:
            sent, fields = failed.may_have_started, headers.sent_again(fields)
        while True:
            try:
                if look and await self._ended(message):
                    return Submitted(message, None, created=sent)
                stream = self._tasks
                if stream is None:
                    stream = self._tasks = await self._streams.tasks()
                stored = await stream.publish(
                    message.subject, message.data, headers=fields, timeout_s=_try_s(give_up_at)
                )
                if not stored.duplicate:
                    return Submitted(message, stored.sequence)
                if await self._is_ours(stream, message, stored.sequence):
                    # It may be what we have sent before, without an answer.
                    return Submitted(message, stored.sequence, created=sent or not message.keyed)
                taken += 1
                fields = headers.sent_again(message.headers)
                id = fields.pop(headers.MESSAGE_ID)
                if taken < _MOST_TAKEN:
                    fields[headers.MESSAGE_ID] = f"{id}-{taken}"
                continue
            except (StorageUnavailable, Disconnected) as error:
                sent = sent or error.may_have_started
                pause_s = exponential_s(_PAUSE_FIRST_S, _PAUSE_MAX_S, failures)
                if loop.time() + pause_s >= give_up_at:
                    raise _not_stored(message, error, sent) from error
            failures += 1
            fields = headers.sent_again(fields)
            await asyncio.sleep(pause_s * (0.5 + self._ambient.random.random() / 2))

    async def _is_ours(self, stream: Stream, message: TaskMessage, sequence: int) -> bool:
        """Whether the message that the server has under our `Nats-Msg-Id` is the same task. Those ids are one namespace
        for all producers, and that of an idempotency key can be known to others."""
        try:
            found = await stream.get(sequence)
            if found is not None:
                return await self._same(message, found) and not await self._is_cancelled(message, found)
            if message.scheduled:
                # Perhaps its dispatcher has returned it to the server until its time.
                schedules = await self._streams.schedules()
                if await schedules.last(self._streams.names.schedule(message.job)) is not None:
                    return True
                if message.repeats:
                    return False  # somebody has cancelled it since, and whatever record there is tells that
            # It has ended and left a result, unless that was kept for less time than the id is remembered.
            kept_s = float(message.headers.get(headers.RESULT_TTL, DUPLICATES_S))
            return not message.keyed or kept_s < DUPLICATES_S or await self._ended(message)
        except NotPermitted:
            return True

    async def _same(self, message: TaskMessage, found: StreamMessage) -> bool:
        subject, tenant = split_tenant(found.subject)
        if subject != message.subject or (found.headers or {}).get(headers.JOB) != message.headers.get(headers.JOB):
            return False
        if not message.keyed or not tenant:
            return True  # nobody else knows this id, or it is shared with the users of Gangline's own account
        # Another tenant may use our id, too. If the server does not say who we are, the arguments tell.
        ours = await self._streams.tenant()
        return tenant == ours if ours else found.data == message.data

    async def _is_cancelled(self, message: TaskMessage, found: StreamMessage) -> bool:
        """Whether `found` declares a recurring schedule that was cancelled before a dispatcher had seen it."""
        if not message.repeats:
            return False
        results = await self._streams.results(make=False)
        record = result_in(await results.get(self._streams.names.result_key(message.job)))
        return record is not None and record.state is JobState.CANCELLED and record.covers(found.at)

    async def _ended(self, message: TaskMessage) -> bool:
        """Whether a job of this idempotency key has a result; perhaps the stream has forgotten the key. Earlier
        dispatchers stored those of tenants without the tenant in the id."""
        results = await self._streams.results(make=False)
        for job in dict.fromkeys((message.job, short_job(message.job))):
            if await results.get(self._streams.names.result_key(job)) is not None:
                return True
        return False


def _try_s(give_up_at: float) -> float:
    """How long an attempt that begins now may take."""
    return min(TRY_S, max(0.001, give_up_at - asyncio.get_running_loop().time()))


async def at_once(count: int, attempt: Callable[[int], Awaitable[T]]) -> list[T]:
    """The results of `attempt` for each number from 0, in order; AT_ONCE run concurrently."""
    found: list[T] = []
    for start in range(0, count, AT_ONCE):
        found += await asyncio.gather(*map(attempt, range(start, min(start + AT_ONCE, count))))
    return found


def _attributes(target: str) -> dict[str, str]:
    return {"gangline.endpoint": target.partition(".")[0]}


def _not_stored(message: TaskMessage, error: GanglineError, sent: bool) -> StorageUnavailable:
    certain = "it may be stored all the same: submit it with an idempotency_key to try again safely"
    return StorageUnavailable(
        f"{message.target} was not acknowledged ({error.message}); {certain if sent else 'nothing was stored'}",
        may_have_started=sent,
        details={"job": message.job},
    )
