"""The messages for each door: valid messages, mutated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bench.fuzz.mutation import HEADER_NAMES, HEADER_VALUES, HOSTILE, RAW, Mutator, encoded

MSGPACK: Final = {"Content-Type": "application/msgpack"}
GHOSTS: Final = ("ghost", "ghost-1", "ghost_2", "g" * 128)
"""Endpoints and pools without workers. Only a few, because each costs a subscription or a queue for a while."""
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One message."""

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    due: bool = True
    """Whether it must be answered."""
    reply: str = ""
    """Where the answer goes; empty: to the sender, if it wants one."""


_SEAT: Final = {"rank": 0, "part": 0, "pool": "ghost", "worker": "w", "slots": 1, "token": "t", "epoch": 7, "node": "n"}
_SPEC: Final = {
    "bundles": [{"pool": "ghost", "count": 2, "extras": [{"pool": "p", "labels": {"a": "b"}}]}],
    "ttl_s": 15.0,
}
_ERROR: Final = {"code": "task_failed", "message": "no", "details": {"type": "ValueError"}}
_TRIES: Final = [{"attempt": 1, "worker": "p.w", "started_at": 1.5, "ended_at": 2.5, "error": _ERROR}]

OPERATIONS: Final[dict[str, Any]] = {
    "reserve": {"rid": "r1", "slots": 1, "ttl_s": 1.0, "claim_s": 1.0, "single_use": True,
                "ledger": "sync", "owner": "o"},
    "dispatch": {"token": "t1", "epoch": 1, "method": "echo", "arguments": {"value": [1, "a"]}, "timeout_s": 2.0},
    "renew": {"token": "t1", "epoch": 1, "ttl_s": 2.0},
    "release": {"token": "t1", "rid": "r1"},
    "stats": {},
    "jobs": {"endpoint": "fuzz", "after": "x"},
    "hold": {"gang": "g1", "generation": 1, "attempt": 1, "seats": [{"rank": 0, "slots": 1}], "hold_s": 1.0},
    "unhold": {"gang": "g1", "generation": 1, "attempt": 1},
    "keep": {"gang": "g1", "slots": 1, "keep_s": 1.0},
    "form": {"gang": "g1", "generation": 1, "fence": 5, "size": 1, "seats": [_SEAT], "ttl_s": 2.0, "grace_s": 1.0},
    "teardown": {"gang": "g1", "generation": 1, "reason": "released", "grace_s": 1.0, "only": ["t"]},
    "ping": {"gangs": {"g1": 1}},
    "drain": {"grace_s": 1.0, "zz": 1},
    "resize": {"slots": 5, "zz": 1},
    "explode": {"a": 1},
}  # fmt: skip
"""Operations of a worker. `drain` and `resize` are only sent invalid, because they would take effect."""
GANGS: Final[dict[str, Any]] = {
    "acquire": {"pool": "ghost", "size": 2, "slots": 1, "strategy": "pack", "priority": 0, "deadline_s": 2.0,
                "labels": {}, "wait": False, "id": "f1", "owner_token": "o1", "ttl_s": 1.0, "owner": "f",
                "traceparent": TRACE},
    "renew": {"id": "f1", "owner_token": "o1", "generation": 1},
    "release": {"id": "f1", "owner_token": "o1"},
    "end": {"id": "f1", "reason": "fuzz"},
    "get": {"id": "f1", "owner_token": "o1"},
    "list": {"gangset": "s"},
    "why": {"id": "f1"},
    "report": {"gang": "f1", "generation": 1, "rank": 0, "cause": "crashed", "detail": "d"},
    "explode": {},
}  # fmt: skip
ITEMS: Final[tuple[Any, ...]] = ({}, {"after": 3}, {"after": 0, "close": False}, {"close": True}, {"more": 1})
"""For items of streamed calls."""
QUEUES: Final[dict[str, Any]] = {
    "get": {"job": "j1"},
    "cancel": {"job": "j1"},
    "why": {"job": "j1"},
    "stats": {},
    "x": {},
}
LEDGER: Final[dict[str, Any]] = {
    "gang.ghost": {"id": "ghost", "state": "formed", "spec": _SPEC,
                   "seats": [_SEAT], "owner_token": "t", "generation": 1},
    "gangset.ghost": {"gangs": 1, "surge": 1, "gang": {"pool": "ghost", "size": 2}},
    "gangset_status.ghost": {"state": "steady", "gangs": 1, "current": {"pool": "ghost", "size": 2}, "failures": 1},
    "member.ghost.w.ghost": {"gang": "ghost", "generation": 1, "epoch": 7, "seats": [{"rank": 0, "token": "t"}]},
    "reg.ghost.w": {"pool": "ghost", "worker": "w", "epoch": 7, "instance": "i", "slots": 2, "labels": {"a": "b"}},
    "reg.fuzz.ghost": {"pool": "fuzz", "worker": "ghost", "epoch": 7, "instance": "i", "slots": 0, "channel": "c"},
    "alive.ghost.w": {"epoch": 7, "instance": "i", "running": 0, "reserved": 0, "total": 2, "models": ["m"]},
    "alive.fuzz.ghost": {"epoch": 7, "instance": "i", "running": 0, "reserved": 0, "total": 0},
    "lease.ghost.w.t": {"pool": "ghost", "worker": "w", "epoch": 7, "token": "t", "slots": 1, "fence": 9,
                        "single_use": False, "granted_at": 1.5, "expires_at": 2.5},
    "shards": {"shards": {}},
    "x.y": {"a": 1},
}  # fmt: skip
RESULTS: Final[dict[str, Any]] = {
    "result.ghost": {"job": "ghost", "endpoint": "e", "method": "m", "state": "dead", "error": _ERROR, "tries": _TRIES},
    "try.fuzz.ghost": {"job": "ghost", "sequence": 1, "attempts": 1, "not_before": 1.5, "tries": _TRIES},
    "try.good.ghost": {"job": "ghost", "sequence": 1, "attempts": 1, "not_before": 1.5},
}  # fmt: skip
ROUTES: Final = {
    "to": {"ghost": 9, "ghost-1": 1},
    "shadow": {"ghost_2": 5},
    "limits": {"ghost": 3},
    "queue": {"per_key": 1},
}
# A valid presence of a dispatcher would give it queues, so this one is never valid.
EVENTS: Final[dict[str, Any]] = {
    "event.gang.ghost": {"kind": "formed", "gang": "ghost", "generation": 1, "size": 2, "gangset": "ghost"},
    "event.worker.ghost.w": {"event": "joined", "epoch": 1},
    "event.dispatcher.ghost": {"dispatcher": "ghost", "event": "x", "queues": ["ghost"], "has": 1, "at": 1.0},
    "event.task.ghost": {"job": "j", "endpoint": "ghost", "method": "m", "reason": "failed", "attempts": 1, "at": 1.0},
    "event.router.ghost": {"router": "r", "owner": "o", "node": "n", "waiting": {"fuzz": 1}},
    "gang-talk.ghost.1.1.0": {"kind": "x"},
    "job.ghost.state": {"job": "ghost", "state": "running", "at": 1.0},
}  # fmt: skip


class Doors:
    """Draws one message after another, determined by the seed.

    Args:
        namespace: namespace of the system under test.
        epoch: epoch of its worker `fuzz.v1`, so that frames are not refused as outdated.
    """

    def __init__(self, random: Random, namespace: str, epoch: int) -> None:
        self._random = random
        self._mutator = Mutator(random)
        self._ns = namespace
        self._epoch = epoch
        self._ids = 1_000_000
        self.channels: list[str] = []
        """Observed reply subjects, at least one, for forged answers."""
        self.streams: list[str] = []
        """Subjects of streamed calls that are open, or were."""
        self.draw: dict[str, Callable[[], Shot]] = {
            "operations": self._operation,
            "frames": self._frames,
            "gateway": self._call,
            "items": self._items,
            "coordinator": self._gang,
            "dispatcher": self._queue,
            "values": self._value,
            "streams": self._task,
            "answers": self._answer,
            "events": self._event,
        }

    def _subject(self, *parts: str) -> str:
        """The subject of an operation, sometimes the private one."""
        subject = ".".join((self._ns, *parts))
        return f"_GANGLINE.{subject}" if self._random.random() < 0.2 else subject

    def _body(self, document: Any) -> tuple[bytes, dict[str, str]]:
        data, as_msgpack = self._mutator.body(document)
        headers = self._mutator.headers(MSGPACK if as_msgpack else {}) if self._random.random() < 0.3 else {}
        return data, {**(MSGPACK if as_msgpack else {}), **headers}

    def _operation(self) -> Shot:
        operation = self._random.choice(list(OPERATIONS))
        if operation in ("drain", "resize"):
            document = {"grace_s": self._random.choice(HOSTILE), "slots": self._random.choice(HOSTILE), "zz": 1}
            data, headers = encoded(document, as_msgpack=False), {}
        else:
            data, headers = self._body(OPERATIONS[operation])
        return Shot(subject=self._subject("worker", "fuzz", "v1", operation), data=data, headers=headers)

    def _frames(self) -> Shot:
        random = self._random
        self._ids += 10
        number = self._ids
        meta = random.choice(
            (None, {"job": "j1", "endpoint": "fuzz", "attempt": 1, "acks": True}, {"key": "k"}, {"window": 2})
        )
        frames = [
            [1, number, "echo", [1, "a"], {"k": [1]}, 2000, None, random.choice((None, TRACE)), 0, meta],
            [2, number + 1, 1, 1000, 500, 1, 2000, {"owner": "o"}],
            [3, number + 2, "t1", 1000],
            [4, number + 1, None],
            [5, number],
            [6, number + 3, [number, number + 1]],
            [7, number, 5],
            [8, number],
            [9, "fuzz", "j1", 0, 0, 1],
        ]
        chosen = random.sample(frames, random.randrange(1, 4))
        envelope: list[Any] = [1, self._epoch, f"s{random.randrange(50)}", chosen]
        if random.random() < 0.6:
            frame = random.randrange(len(chosen))
            chosen[frame] = self._mutator.value(chosen[frame])
        elif random.random() < 0.3:
            envelope = self._mutator.value(envelope)
        data = encoded(envelope, as_msgpack=True)
        if random.random() < 0.25:
            data = self._mutator.data(data)
        return Shot(subject=self._subject("worker", "fuzz", "v1", "frames"), data=data, due=False)

    def _call(self) -> Shot:
        random = self._random
        endpoint = "fuzz" if random.random() < 0.85 else random.choice(GHOSTS)
        method = random.choice(("echo", "echo", "typed", "nope", "e" * 130, "a.b", "$x"))
        document = random.choice(
            ({"number": 1, "text": "a", "raw": "YQ==", "more": {"a": [1.5]}}, [1, "a"], {"x": [1, {"y": 2}]})
        )
        data, headers = self._body(document)
        return Shot(
            subject=self._subject("call", endpoint, method), data=data, headers=headers | {"Gangline-Timeout": "5"}
        )

    def _items(self) -> Shot:
        """A streamed call, or a request for the next items of one. Streams that nobody reads stay open for a while, so
        there are few."""
        random = self._random
        if not self.streams or random.random() < 0.02:
            data, headers = self._body({"to": 200})
            streamed = {"Gangline-Stream": random.choice(("true", "1", "7")), "Gangline-Timeout": "20"}
            return Shot(subject=self._subject("call", "fuzz", "count"), data=data, headers=headers | streamed)
        data, headers = self._body(random.choice(ITEMS))
        subject = random.choice(self.streams)
        if random.random() < 0.2:
            subject = f"{subject.rpartition('.')[0]}.{random.choice(('x', 'y' * 22, '~', '$x', 'ä', 'a' * 200))}"
        return Shot(subject=f"_GANGLINE.{subject}" if random.random() < 0.5 else subject, data=data, headers=headers)

    def _gang(self) -> Shot:
        random = self._random
        operation = random.choice(list(GANGS))
        document = dict(GANGS[operation])
        if "id" in document:
            document["id"] = f"f{random.randrange(20)}"
        if operation != "acquire":
            data, headers = self._body(document)
            return Shot(subject=self._subject("gang", operation), data=data, headers=headers)
        document = self._mutator.value(document)
        if isinstance(document, dict):
            document["wait"] = False
        as_msgpack = random.random() < 0.4
        data = encoded(document, as_msgpack=as_msgpack) if random.random() < 0.9 else random.choice(RAW)
        headers = self._mutator.headers({}) | (MSGPACK if as_msgpack else {"Content-Type": "application/json"})
        return Shot(subject=self._subject("gang", operation), data=data, headers=headers)

    def _queue(self) -> Shot:
        operation = self._random.choice(list(QUEUES))
        data, headers = self._body(QUEUES[operation])
        endpoint = self._random.choice(("fuzz", "good", "ghost"))
        return Shot(subject=self._subject("queue", endpoint, operation), data=data, headers=headers)

    def _value(self) -> Shot:
        random = self._random
        upper = self._ns.upper()
        if random.random() < 0.15:
            key, bucket, document = random.choice(GHOSTS), "ROUTES", ROUTES
        elif random.random() < 0.3:
            key, bucket = random.choice(list(RESULTS)), "RESULTS"
            document = RESULTS[key]
        else:
            key, bucket = random.choice(list(LEDGER)), "LEDGER"
            document = LEDGER[key]
        if random.random() < 0.1:
            headers = {"KV-Operation": "DEL"}
            return Shot(subject=f"$KV.{upper}_{bucket}.{key}", data=b"", headers=headers)
        data, _ = self._mutator.body(document)
        return Shot(subject=f"$KV.{upper}_{bucket}.{key}", data=data)

    def _task(self) -> Shot:
        random = self._random
        endpoint = "fuzz" if random.random() < 0.9 else random.choice(GHOSTS)
        method = random.choice(("echo", "echo", "typed", "nope"))
        data, headers = self._body(random.choice(([1], {"number": 1, "text": "a"}, {})))
        if random.random() < 0.6:
            headers |= {
                random.choice(HEADER_NAMES): random.choice(HEADER_VALUES) for _ in range(random.randrange(1, 4))
            }
        for name in ("Gangline-Cron", "Gangline-Pool"):  # a schedule that stays, and tasks for the good ones
            headers.pop(name, None)
        return Shot(subject=f"{self._ns}.task.{endpoint}.{method}", data=data, headers=headers)

    def _answer(self) -> Shot:
        """Answers with ids that no request has: an answer to a pending request would be accepted."""
        random = self._random
        self._ids += 1
        op = random.choice(
            ([1, self._ids, 5], [2, self._ids, "x", "y", None, False], [6, self._ids, [1]], [8, self._ids, 3])
        )
        envelope: list[Any] = [1, self._epoch, [0, 0, 5, 0], [op]]
        data = encoded(envelope, as_msgpack=True)
        if random.random() < 0.5:
            envelope[random.randrange(3)] = random.choice(HOSTILE)
            data = encoded(envelope, as_msgpack=True)
        elif random.random() < 0.7:
            data = random.choice(RAW)
        subject = self.channels[random.randrange(8) % len(self.channels)] + random.choice(
            ("", "", ".1", ".x", ".1.2", ".99999999999999999999")
        )
        return Shot(subject=subject, data=data, headers=self._mutator.headers({}), due=False)

    def _event(self) -> Shot:
        subject = self._random.choice(list(EVENTS))
        data, headers = self._body(EVENTS[subject])
        return Shot(subject=f"{self._ns}.{subject}", data=data, headers=headers, due=False)
