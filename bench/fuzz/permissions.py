"""Users of each role send the headers that the server itself obeys, and an observer compares what happens with what the
permissions of the sender allow.

The observer looks at all streams (configuration, consumers, stored messages) and hears everything on the wire. While
this runs nobody else sends requests. So whatever changes was done by the sender, by the processes of the system by
themselves, or by one of them because of the sender's message.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bench.fuzz.doors import Shot
from bench.fuzz.wire import BareClient
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, Storage
from gangline.bus.streams.history_recorder import HistorySettings
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.names import Names, split_tenant
from gangline.schemas.permissions.nats_config import configuration, parse_user, variable
from gangline.schemas.permissions.roles import INBOXES, Permissions, User, covers

MEMORY: Final = {"GANGLINE_STORAGE": "memory"}
PASSWORD: Final = "fuzz"  # noqa: S105  # of a server on 127.0.0.1, for the time of a run
FREE: Final = "free"
"""A user whom no permissions limit: it sends everything else, and observes."""
PROCESS_USERS: Final = {
    "coordinator": parse_user("coordinator"),
    "dispatcher": parse_user("dispatcher"),
    "gateway": parse_user("gateway"),
    "v1": parse_user("v1=worker:fuzz.v1"),
    "g1": parse_user("g1=worker:good.g1"),
}
"""By process."""
SENDERS: Final = tuple(
    map(
        parse_user,
        (
            "app=producer:fuzz",
            "web@shop=producer:fuzz",
            "router=router:fuzz",
            "owner=owner:fuzz",
            "eye=observer",
            # In Gangline's account, a worker may have the server carry out requests: see the threat model.
            "evil@gpus=worker:fuzz.evil",
        ),
    )
)
_FOREIGN: Final = "good"
"""An endpoint and pool that is none of the senders'."""
_OWN: Final = "fuzz"
_TOKENS: Final = ("fuzz", "v1", "evil", "echo", "x", "canary", "good", "1")
"""What stands for a wildcard."""
_STREAM_OPERATIONS: Final = ("STREAM.PURGE", "STREAM.DELETE", "STREAM.LEADER.STEPDOWN")
"""Requests of the server's API that it accepts with an empty body."""
_EACH: Final = 50
"""Messages of one sender before the next one's turn."""
_LATE_S: Final = 1.5
"""What schedules publish and what expires comes up to a second later."""
_PAUSE_S: Final = 0.3
_ASKED_S: Final = 30.0
_WAITING: Final = f"{_FOREIGN}.waiting"
"""A task."""
_SHOT: Final = "Fuzz-Shot"
_SHOT_LINE: Final = re.compile(rb"Fuzz-Shot: ?(\d+)")
_MARKER: Final = "Nats-Marker-Reason"
"""On what the server stores where a key has expired."""
_BY_SERVER: Final = (
    *(
        "$SYS.ACCOUNT.*.DISCONNECT",
        "$JS.EVENT.>",
        "$JS.S.>",
        "$JSC.R.*",
        "$JS.FC.>",
        "_R_.>",
        "$JS.API.CONSUMER.CREATE.FUZZ_SCHED.*.fuzz.due.>",
    ),
    *("$JS.API.STREAM.LIST", "$JS.API.STREAM.MSG.GET.*", "$JS.API.CONSUMER.NAMES.*"),
)
"""On the wire: between streams of which one is the source of the other, and what the observer asks."""


def server_configuration(names: Names) -> str:
    """Users of all roles, and the one without limits."""
    text = configuration(names, (*PROCESS_USERS.values(), *SENDERS))
    for user in (*PROCESS_USERS.values(), *SENDERS):
        text = text.replace(f"${variable(user.name)},", f"{PASSWORD},")
    return text.replace("    users: [\n", f"    users: [\n      {{ user: {FREE}, password: {PASSWORD} }}\n", 1)


def environment(user: str) -> dict[str, str]:
    """How a process connects as that user."""
    return {"NATS_USER": user, "NATS_PASSWORD": PASSWORD, "GANGLINE_INBOX_PREFIX": f"{INBOXES}.{user}"}


class HeaderDoor:
    """Draws messages with the server's headers, from what one user may publish, determined by the seed."""

    def __init__(
        self, random: Random, user: User, names: Names, targets: Iterable[str], streams: Iterable[str]
    ) -> None:
        """
        Args:
            targets: subjects that no sender may change.
        """
        self._random = random
        self._tenant = bool(user.tenant)
        self._targets = tuple(targets)
        self._api = tuple(f"$JS.API.{operation}.{name}" for name in streams for operation in _STREAM_OPERATIONS)
        self._allowed = user.permissions(names).publish
        stored = ("$KV.", "$O.", f"{names.namespace}.task.", f"{names.namespace}.job.", f"{names.namespace}-history.")
        self._stored = tuple(pattern for pattern in self._allowed if pattern.startswith(stored))

    def draw(self, number: int) -> Shot:
        """The message with that number."""
        random = self._random
        if random.random() < 0.1:
            subject = random.choice(self._targets)  # to be refused
        else:
            some = self._stored if self._stored and random.random() < 0.7 else self._allowed
            subject = ".".join(
                random.choice(_TOKENS) if token in ("*", ">") else token for token in random.choice(some).split(".")
            )
        names = [*random.choice(_KITS), *random.sample(list(_VALUES), random.choice((0, 0, 0, 1, 3)))]
        headers = {name: self._value(random.choice(_VALUES[name]), subject, number) for name in names}
        data = random.choice((b"", b"[]", b"[1]", b"{}", b"null"))
        # An acknowledgement may take any place of the account but its API: see the threat model.
        replies = (*self._api, *self._targets) if self._tenant else self._api
        reply = random.choice(replies) if random.random() < 0.6 else ""
        return Shot(subject=subject, data=data, headers={**headers, _SHOT: str(number)}, reply=reply, due=False)

    def _value(self, value: str, subject: str, number: int) -> str:
        if value != "TARGET":
            return value.replace("NUMBER", str(number))
        same = [target for target in self._targets if target.split(".")[:2] == subject.split(".")[:2]]
        return self._random.choice(same if same and self._random.random() < 0.7 else self._targets)


_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "Nats-Batch-Id": ("batch-NUMBER", "batch-NUMBER", "batch"),
    "Nats-Batch-Sequence": ("1", "1", "1", "2", "x"),
    "Nats-Batch-Commit": ("1", "eob", "x"),
    "Nats-Schedule": ("@at 2020-01-01T00:00:00Z", "@every 1s", "* * * * * *", "x"),
    "Nats-Schedule-Target": ("TARGET",),
    "Nats-Schedule-Source": ("TARGET",),
    "Nats-Schedule-TTL": ("1s", "never", "x"),
    "Nats-Schedule-Rollup": ("sub", "all"),
    "Nats-Scheduler": ("TARGET",),
    "Nats-Schedule-Next": ("purge", "2030-01-01T00:00:00Z"),
    "Nats-Rollup": ("all", "sub", "x"),
    "Nats-TTL": ("1s", "never", "0", "x"),
    "Nats-Expected-Stream": ("FUZZ_TASKS", "KV_FUZZ_RESULTS"),
    "Nats-Expected-Last-Sequence": ("0", "1", "x"),
    "Nats-Expected-Last-Subject-Sequence": ("0", "1", "x"),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("TARGET",),
    "Nats-Expected-Last-Msg-Id": ("x",),
    "Nats-Msg-Id": ("NUMBER", "x"),
    "Nats-Incr": ("+1",),
    "Nats-Trace-Dest": ("TARGET",),
    "Nats-Marker-Reason": ("Remove",),
    "Nats-Stream-Source": ("FUZZ_SCHED 1 fuzz.due.> fuzz.task.> fuzz.due.good.double",),
    "KV-Operation": ("DEL", "PURGE"),
    "Gangline-Job": (f"{_FOREIGN}.canary", f"{_OWN}.NUMBER"),
    "Gangline-Delay": ("1s", "1h"),
}
"""`TARGET`: a subject that the sender may not change."""
_KITS: Final = (
    ("Nats-Batch-Id", "Nats-Batch-Sequence"),
    ("Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"),
    ("Nats-Schedule", "Nats-Schedule-Target"),
    ("Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-Source", "Nats-Schedule-TTL"),
    ("Nats-Scheduler", "Nats-Schedule-Next"),
    ("Nats-Rollup",),
    ("Nats-TTL",),
    ("Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject"),
    ("Nats-Msg-Id",),
    ("Nats-Trace-Dest",),
    ("Gangline-Delay", "Nats-Schedule-Target", "Nats-Rollup"),
    ("Gangline-Job", "Nats-TTL"),
)
"""Headers that do something together."""


@dataclass(slots=True)
class _Stream:
    config: Mapping[str, Any]
    last: int
    consumers: frozenset[str]


@dataclass(slots=True)
class _Stored:
    stream: str
    subject: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class Observer:
    """What is stored and on the wire. `start`, then `look` after each message."""

    bus: NatsBus
    """As the user without limits."""
    wire: BareClient
    """Likewise."""
    names: Names
    canaries: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """Messages that nobody may change, by subject: the stream and the sequence."""
    _streams: dict[str, _Stream] = field(default_factory=dict[str, _Stream])
    _heard: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """By subject, the number of the shot in the last message, since the last look."""
    _on_wire: set[str] = field(default_factory=set[str])
    """Subjects of all messages so far."""
    _system: tuple[str, ...] = ()

    @property
    def streams(self) -> list[str]:
        return list(self._streams)

    async def start(self) -> None:
        """Open all streams, and leave a message in each."""
        bus, names = self.bus, self.names
        storage = TaskStorage(storage=Storage.MEMORY)
        streams = TaskStreams(bus, names, storage)
        await bus.bucket(names.ledger_bucket, BucketSettings(storage=Storage.MEMORY))
        for open_ in (streams.tasks, streams.schedules, streams.dead, streams.jobs):
            await open_()
        await streams.results()
        await streams.routes()
        await streams.objects()
        await bus.stream(names.audit_stream, storage.audit(names))
        await bus.stream(names.history_stream, HistorySettings.from_environment(MEMORY).stream(names))
        ns = names.namespace
        planted = {
            f"$KV.{names.ledger_bucket}.x.canary": names.ledger_bucket,
            f"$KV.{names.results_bucket}.result.{_FOREIGN}.canary": names.results_bucket,
            f"$KV.{names.routes_bucket}.canary": names.routes_bucket,
            f"$O.{names.objects_store}.C.canary": names.objects_store,
            # It runs until `stop`.
            names.task(_FOREIGN, "wait"): names.tasks_stream,
            f"{ns}.sched.{_FOREIGN}.canary": names.schedules_stream,
            names.dead(_FOREIGN, "canary"): names.dead_stream,
            names.job(f"{_FOREIGN}.canary", "state"): names.jobs_stream,
            names.audit("canary"): names.audit_stream,
            names.history("canary"): names.history_stream,
        }
        for subject in planted:
            headers = {"Gangline-Job": _WAITING, "Gangline-Timeout": "3600"} if ".task." in subject else {}
            answer = await bus.request(subject, b'{"to": {"good": 1}}', headers=headers, timeout_s=_ASKED_S)
            stored = _json(answer.data)
            self.canaries[subject] = (stored["stream"], stored["seq"])
        lists = [user.permissions(names).publish for user in PROCESS_USERS.values()]
        self._system = (*_BY_SERVER, *(pattern for patterns in lists for pattern in patterns))
        self.wire.subscribe(">", self._on_message)
        await self.wire.flush()
        self._streams, _ = await self._read()

    async def stop(self) -> None:
        await self.bus.request(self.names.queue(_FOREIGN, "cancel"), _bytes({"job": _WAITING}), timeout_s=_ASKED_S)

    def _on_message(self, subject: str, reply: str, body: bytes) -> None:
        if reply.startswith("$JS.ACK."):  # delivered to a consumer
            return
        number = _SHOT_LINE.search(body)
        self._heard[subject] = number[1] if number else b""

    async def _read(self) -> tuple[dict[str, _Stream], list[_Stored]]:
        """All streams, and the messages that are new in them."""
        call = self.bus.api.call
        listed = (await call("STREAM.LIST", {"offset": 0}, what="list streams"))["streams"] or []
        found: dict[str, _Stream] = {}
        wanted: list[tuple[str, int]] = []
        for each in listed:
            name, last = each["config"]["name"], int(each["state"]["last_seq"])
            names = (await call(f"CONSUMER.NAMES.{name}", {"offset": 0}, what="list consumers"))["consumers"] or []
            found[name] = _Stream(each["config"], last, frozenset(names))
            if name in self._streams:
                wanted += [(name, number) for number in range(self._streams[name].last + 1, last + 1)]
        read = await asyncio.gather(*(self._message(name, {"seq": number}) for name, number in wanted))
        return found, [each for each in read if each is not None]

    async def _message(self, stream: str, which: Mapping[str, object]) -> _Stored | None:
        answer = _json(
            (await self.bus.request(f"$JS.API.STREAM.MSG.GET.{stream}", _bytes(which), timeout_s=_ASKED_S)).data
        )
        message = answer.get("message")
        if message is None:
            return None
        block = base64.b64decode(message.get("hdrs", "")).decode("utf-8", "replace")
        pairs = (line.partition(":") for line in block.split("\r\n")[1:] if ":" in line)
        headers = {name: value.strip() for name, _, value in pairs} | {"": str(message["seq"])}
        return _Stored(stream, message["subject"], headers)

    async def look(self, allowed: Permissions, replies: Container[str] = ()) -> list[tuple[str, str]]:
        """What has changed since the last look and may not: the number of the shot, if it is known, and what it did.

        Args:
            allowed: what the sender may do.
            replies: its reply subjects. The server answers anywhere; what comes of it counts.
        """
        before = self._streams
        self._streams, stored = await self._read()
        await self.wire.flush()
        heard, self._heard = self._heard, {}
        self._on_wire |= heard.keys()
        found: list[tuple[str, str]] = []
        for name in before.keys() | self._streams.keys():
            found += [("", text) for text in self._changed(name, before.get(name), self._streams.get(name))]
        found += [
            (each.headers.get(_SHOT, ""), f"{text} in {each.stream}, with {dict(each.headers)}")
            for each in stored
            if (text := self._misplaced(each, allowed))
        ]
        found += [
            (number.decode(), f"a message to {subject}")
            for subject, number in heard.items()
            if subject not in replies and not self._may(subject, allowed) and not self._is_of_system(subject)
        ]
        kept = await asyncio.gather(
            *(self._message(stream, {"seq": number}) for stream, number in self.canaries.values())
        )
        for subject, message in zip(list(self.canaries), kept, strict=True):
            if message is None or message.subject != subject:
                stream, _ = self.canaries.pop(subject)
                found.append(("", f"the message on {subject} is gone from {stream}"))
        return found

    def _changed(self, name: str, before: _Stream | None, now: _Stream | None) -> Iterable[str]:
        if before is None or now is None:
            yield f"the stream {name} {'appeared' if before is None else 'is gone'}"
            return
        if before.config != now.config:
            yield f"the configuration of {name} changed"
        # Dispatchers make one for each endpoint, and short-lived ones to read a bucket.
        if name != self.names.tasks_stream and not name.startswith("KV_"):
            for consumer in before.consumers ^ now.consumers:
                yield f"the consumer {consumer} of {name} {'is gone' if consumer in before.consumers else 'appeared'}"

    def _misplaced(self, stored: _Stored, allowed: Permissions) -> str:
        subject, ns = stored.subject, self.names.namespace
        target = stored.headers.get("Nats-Schedule-Target", "")
        if subject in self.canaries:
            return f"{subject} was written"
        if target and "Nats-Schedule" in stored.headers and not covers(f"{ns}.due.{_OWN}.>", target):
            return f"a schedule for {target} on {subject}"
        if self._may(subject, allowed) or _MARKER in stored.headers:
            return ""
        if subject not in self._on_wire:  # by the server itself
            own = (f"{ns}.due.{_OWN}.>", f"{ns}.task.{_OWN}.>")
            return "" if any(covers(pattern, subject) for pattern in own) else f"the server put a message on {subject}"
        return "" if self._is_of_system(subject) else f"a message on {subject}"

    def _may(self, subject: str, allowed: Permissions) -> bool:
        written, _ = split_tenant(subject)
        return any(covers(pattern, written) for pattern in allowed.publish)

    def _is_of_system(self, subject: str) -> bool:
        return subject.startswith(f"{INBOXES}.") or any(covers(pattern, subject) for pattern in self._system)


async def check_permissions(
    observer: Observer,
    port: int,
    seed: int,
    *,
    seconds: float,
    most: int | None = None,
    senders: Sequence[User] = SENDERS,
) -> tuple[int, list[str]]:
    """Send messages with the server's headers as one user after the other.

    Args:
        seconds: maximum time for which messages are sent.
        most: maximum number of messages.

    Returns:
        How many were sent, and the breaches, each with the message that caused it.
    """
    began, sent, findings = time.monotonic(), 0, list[str]()
    shots: dict[str, str] = {}

    async def look(allowed: Permissions, replies: Container[str]) -> list[str]:
        found = await observer.look(allowed, replies)
        return [
            f"{what}, which is not allowed, after {shots.get(number) or shots[str(sent)]}" for number, what in found
        ]

    for turn in itertools.count():
        user = senders[turn % len(senders)]
        allowed = user.permissions(observer.names)
        door = HeaderDoor(Random(f"headers {seed} {turn}"), user, observer.names, observer.canaries, observer.streams)
        client = await BareClient.connect(port, user.name, PASSWORD)
        replies = set[str]()
        for _ in range(_EACH):
            over = time.monotonic() - began > seconds or (most is not None and sent >= most)
            if over or findings:
                break
            sent += 1
            shot = door.draw(sent)
            shots[str(sent)] = (
                f"{user.name} ({', '.join(user.roles)}) sent {shot.subject} {shot.data!r} {dict(shot.headers)}"
                f"{f' with the reply subject {shot.reply}' if shot.reply else ''}"
            )
            replies.add(shot.reply)
            client.publish(shot.subject, shot.data, reply=shot.reply, headers=shot.headers)
            await client.flush()
            findings += await look(allowed, replies)
        for _ in range(int(_LATE_S / _PAUSE_S)):
            await asyncio.sleep(_PAUSE_S)
            findings += await look(allowed, replies)
        await client.close()
        if findings or sent == most or time.monotonic() - began > seconds:
            return sent, findings[:5]
    raise AssertionError


def _json(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode()
