"""A NATS server in memory, for tests, the simulator and users' own tests.

`MemoryServer.connect` returns connections that pass the same conformance suite as those to a real server. Without
faults, everything is delivered in order, on the next turn of the event loop. Outages are methods (`stop`, `start`,
`disconnect`, `partition`, `storage_down`); a `Faults` object draws the faults of single messages.

All times come from the running loop, so a virtual loop also controls expiry and timeouts.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ...runtime.clock import Environment
from ...schemas.errors.base import ServerUnreachable
from ..key_value.bucket import NatsKeyValue
from ..key_value.wire import is_marker
from ..port.bus import (
    BucketSettings,
    ConnectionEvent,
    KvEntry,
    KvOperation,
    KvWrite,
    Message,
    ObjectStore,
    Stream,
    StreamMessage,
    StreamSettings,
)
from ..storage import OpenedStorage
from .connection import MemoryConnection, MemorySubscription, ServerLink
from .faults import SERVER, Faults, Split, WriteOutcome, server_time
from .jetstream import MemoryJetStream
from .stream_store import EXPECTED, EXPECTED_OF, Publication, StreamStore

_INBOXES = "_INBOX."

Matches = tuple[list["MemorySubscription"], list[list["MemorySubscription"]]]


def _inbox_of(subject: str) -> str:
    """The first two parts of a subject or pattern below one inbox; empty for any other."""
    if not subject.startswith(_INBOXES):
        return ""
    name = subject[: subject.find(".", len(_INBOXES))] if "." in subject[len(_INBOXES) :] else subject
    return "" if "*" in name or ">" in name else name


class RoutingTable:
    """Finds the listeners that match a subject. Those without wildcards are indexed by their subject, others below one
    inbox by that; results for subjects that are no inbox are cached until a listener that could change them is added or
    removed."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._numbers: dict[MemorySubscription, int] = {}
        """All, numbered in subscription order."""
        self._literal: dict[str, dict[MemorySubscription, None]] = {}
        """Those whose pattern has no wildcard, by their subject."""
        self._inboxes: dict[str, dict[MemorySubscription, None]] = {}
        """Those whose pattern has wildcards and is below one inbox, by that."""
        self._patterns: dict[MemorySubscription, None] = {}
        """The rest."""
        self._wide: dict[MemorySubscription, None] = {}
        """Those of the rest whose pattern may match subjects in several inboxes."""
        self._known: dict[str, Matches] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, listener: MemorySubscription) -> None:
        self._numbers[listener] = next(self._next)
        text = listener.pattern.text
        if listener.pattern.literal:
            self._literal.setdefault(text, {})[listener] = None
            self._known.pop(text, None)
        elif inbox := _inbox_of(text):
            self._inboxes.setdefault(inbox, {})[listener] = None
        else:
            self._patterns[listener] = None
            if text[0] in "*>_":
                self._wide[listener] = None
            self._known.clear()

    def remove(self, listener: MemorySubscription) -> None:
        if self._numbers.pop(listener, None) is None:
            return
        text = listener.pattern.text
        if listener.pattern.literal:
            _discard(self._literal, text, listener)
            self._known.pop(text, None)
        elif inbox := _inbox_of(text):
            _discard(self._inboxes, inbox, listener)
        else:
            del self._patterns[listener]
            self._wide.pop(listener, None)
            self._known.clear()

    def match(self, subject: str) -> Matches:
        """Plain listeners, and the members of each queue group, in subscription order."""
        if inbox := _inbox_of(subject):
            return self._find(subject, (*self._inboxes.get(inbox, ()), *self._wide))
        known = self._known.get(subject)
        if known is None:
            known = self._find(subject, self._patterns)
            if len(self._known) > 4096:  # many subjects are used for a single answer
                self._known.clear()
            self._known[subject] = known
        return known

    def _find(self, subject: str, patterns: Iterable[MemorySubscription]) -> Matches:
        found = [*self._literal.get(subject, ()), *(each for each in patterns if each.pattern.matches(subject))]
        found.sort(key=self._numbers.__getitem__)
        plain: list[MemorySubscription] = []
        groups: dict[str, list[MemorySubscription]] = {}
        for listener in found:
            if listener.queue:
                groups.setdefault(listener.queue, []).append(listener)
            else:
                plain.append(listener)
        return plain, list(groups.values())


def _discard(index: dict[str, dict[MemorySubscription, None]], key: str, listener: MemorySubscription) -> None:
    del index[key][listener]
    if not index[key]:
        del index[key]


DEFAULT_MAX_PAYLOAD_BYTES = 1_048_576
"""The server's own default."""

_BUCKET = "KV_"
_JETSTREAM = "$JS."
_PROMPT = WriteOutcome(0.0, 0.0)
_A_MOMENT_S = 1e-6

MessageTap = Callable[[str, Message], None]
ChangeTap = Callable[[str, KvEntry], None]
WriteTap = Callable[[str, str, Sequence[KvWrite]], None]
StoredTap = Callable[[str, StreamMessage], None]


class MemoryServer:
    """A server in memory.

    Args:
        ambient: source of inbox names and of the choice among a queue group's members.
        faults: decides the fate of each message; None: all arrive at once.
        max_payload: maximum size of body plus headers, in bytes.
        storage_timeout_s: how long clients wait for a storage operation; at least 0.1 s.
    """

    def __init__(
        self,
        *,
        ambient: Environment | None = None,
        faults: Faults | None = None,
        max_payload: int = DEFAULT_MAX_PAYLOAD_BYTES,
        storage_timeout_s: float = 5.0,
    ) -> None:
        self.ambient = ambient or Environment()
        self.faults = faults
        self.max_payload = max_payload
        self.storage_timeout_s = storage_timeout_s
        self.up = True
        self.storage_up = True
        self.still = False
        """JetStream is paused; see `stand_still`."""
        self._frozen = False
        self._split: Split | None = None
        # Its own context, so that the server's work is attributed to no client's task or node.
        self.context = contextvars.Context()
        self._table = RoutingTable()
        self._buses: dict[MemoryConnection, MemoryBus] = {}
        """Each connection, by itself."""
        self.streams = MemoryJetStream(self)
        self._message_taps: list[MessageTap] = []
        self._change_taps: list[ChangeTap] = []
        self._write_taps: list[WriteTap] = []
        self.delivery_taps: list[MessageTap] = []
        self._stored_taps: list[StoredTap] = []

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<MemoryServer {state} connections={len(self._buses)} subscriptions={len(self._table)}>"

    # -- clients --------------------------------------------------------------------------------------------------

    def connect(self, name: str = "memory") -> MemoryBus:
        """Open a connection. Handlers run in the context in which they subscribed.

        Raises:
            ServerUnreachable: the server is down.
        """
        if not self.up:
            raise ServerUnreachable("the in-memory server is down: start() it first")
        bus = MemoryBus(self, name)
        self._buses[bus] = bus
        if self._frozen:
            self.partition(bus)
        return bus

    @property
    def connections(self) -> list[MemoryBus]:
        return list(self._buses.values())

    def tap(
        self,
        *,
        on_message: MessageTap | None = None,
        on_delivery: MessageTap | None = None,
        on_change: ChangeTap | None = None,
        on_write: WriteTap | None = None,
        on_stored: StoredTap | None = None,
    ) -> None:
        """Observe the traffic, for checkers and for debugging.

        Args:
            on_message: called with each message that reaches the server, except for JetStream's API, and its sender.
            on_delivery: called with each message just before its handler is, and the receiver's name.
            on_change: called with each new revision in a bucket, and the bucket's name. A key that expires has the
                revision 0.
            on_write: called with each accepted write or atomic batch, after its revisions, and the names of the writer
                and of the bucket. Times to live are left out.
            on_stored: called with each message that a stream stores, including those published by schedules, and the
                stream's name. Buckets are left out.
        """
        if on_delivery is not None:
            self.delivery_taps.append(on_delivery)
        if on_message is not None:
            self._message_taps.append(on_message)
        if on_change is not None:
            self._change_taps.append(on_change)
        if on_write is not None:
            self._write_taps.append(on_write)
        if on_stored is not None:
            self._stored_taps.append(on_stored)

    def listeners(self, subject: str) -> list[str]:
        """Names of the connections that a message to that subject may go to, with all members of queue groups."""
        plain, groups = self._table.match(subject)
        return [one.bus.name for one in itertools.chain(plain, *groups)]

    def store(self, bucket: str) -> StreamStore | None:
        """The stream of a bucket; None if there is none."""
        return self.streams.find(_BUCKET + bucket)

    def peek(self, bucket: str, prefix: str = "") -> list[KvEntry]:
        """The current entries of a bucket, read without a connection. `prefix`: only keys that begin with it."""
        stream = _BUCKET + bucket
        entries = [
            _entry(stream, message)
            for message in self.messages(stream)
            if not prefix or message.subject.startswith(prefix, len(stream) + 2)
        ]
        return [entry for entry in entries if entry.operation is KvOperation.PUT]

    def messages(self, stream: str) -> Collection[StreamMessage]:
        """The current messages of a stream, read without a connection."""
        store = self.streams.find(stream)
        return () if store is None else store.messages.values()

    # -- outages --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Shut down: all connections are lost, and the contents of memory streams. Idempotent."""
        if not self.up:
            return
        self.up = False
        for bus in self.connections:
            self._lose(bus)
        self.streams.lose_memory()

    def start(self) -> None:
        """Come back; clients reconnect at once. Idempotent."""
        if self.up:
            return
        self.up = True
        for bus in self.connections:
            self.reconnect(bus)
        self.streams.resume()

    def disconnect(self, bus: MemoryBus) -> None:
        """Cut one connection, with the knowledge of both ends. It stays down until `reconnect` (or `start`)."""
        self._lose(bus)

    def reconnect(self, bus: MemoryBus) -> None:
        """Restore a lost connection. No-op for a live one, and while the server is down."""
        if not self.up or self._frozen or bus.link is not ServerLink.DOWN:
            return
        bus.link = ServerLink.UP
        for subscription in bus.subscriptions:
            self._table.add(subscription)
        bus.tell(ConnectionEvent.RECONNECTED)

    def partition(self, bus: MemoryBus) -> None:
        """Hold back all messages in both directions, like a network that drops packets: TCP retries, and neither end
        notices. Ends with `heal` (they arrive late) or `disconnect` (they are lost)."""
        if bus.link is ServerLink.UP:
            bus.link = ServerLink.CUT

    def heal(self, bus: MemoryBus) -> None:
        """End a partition that nobody noticed."""
        if bus.link is ServerLink.CUT:
            bus.link = ServerLink.UP
            held, bus.held = bus.held, []
            for pass_on in held:
                pass_on()

    def mute(self, bus: MemoryBus, *, loses: bool) -> None:
        """Hold back what the client sends, or lose it; it still receives everything. Ends with `unmute`."""
        if bus.unheard is None:
            bus.unheard, bus.loses = [], loses

    def unmute(self, bus: MemoryBus) -> None:
        """Deliver what was held back. Idempotent."""
        held, bus.unheard = bus.unheard, None
        for pass_on in held or ():
            bus.depart(pass_on)

    def kill(self, bus: MemoryBus) -> None:
        """The client's process died: the server forgets the connection, and the client is not notified."""
        if bus.link is not ServerLink.CLOSED:
            self._lose(bus, tell=False)
            bus.link = ServerLink.CLOSED
        self.forget(bus)

    def storage_down(self) -> None:
        """JetStream loses its leader: operations fail at once, and pending requests are dropped. Messages that are not
        for JetStream still arrive."""
        self.storage_up = False
        self.streams.forget_requests()

    def storage_back(self) -> None:
        self.storage_up = True
        self.streams.resume()

    def stand_still(self) -> None:
        """Pause JetStream until `go_on`: it delivers nothing, no schedule fires, and nothing expires."""
        self.still = True

    def go_on(self) -> None:
        """End the pause. Messages that have expired meanwhile are removed first."""
        self.still = False
        self.streams.resume()

    def freeze(self) -> None:
        """Freeze the server until `thaw`: connections stay up, but nothing gets through. Idempotent."""
        self._frozen = True
        self.stand_still()
        for bus in self.connections:
            self.partition(bus)

    def thaw(self, lag_s: Callable[[], float] = lambda: 0.0) -> None:
        """End the freeze: first everything that is due by the clock happens, then each connection's held messages get
        through, `lag_s()` later."""
        self._frozen = False
        self.go_on()

        def serve(bus: MemoryBus) -> None:
            if not self._frozen:
                self.heal(bus)
                self.reconnect(bus)

        for bus in self.connections:
            self.later(lag_s(), functools.partial(serve, bus))

    def split(self, away: Callable[[str], bool]) -> Split:
        """Split the cluster in two, until `mend`; see Split."""
        self._split = Split(away)
        return self._split

    @property
    def is_split(self) -> bool:
        return self._split is not None

    def mend(self) -> None:
        """End the split. Idempotent."""
        split, self._split = self._split, None
        if split is not None:
            split.end()
            self.streams.resume()

    # -- for connections ------------------------------------------------------------------------------------------

    def cuts_off(self, bus: MemoryConnection) -> bool:
        """Whether the leader knows that the connection is on the other side of a split."""
        return self._split is not None and self._split.noticed and self._split.away(bus.name)

    def to_or_from_leader(
        self, bus: MemoryConnection, pass_on: Callable[[], None], refuse: Callable[[], None] | None = None
    ) -> None:
        """Pass something between a connection's server and JetStream's leader. `refuse` is called instead if the server
        knows that it cannot reach a leader."""
        split = self._split
        if split is None or not split.away(bus.name):
            pass_on()
        elif not split.noticed:
            split.cross(pass_on)
        elif refuse is not None:
            refuse()

    def route(self, sender: MemoryConnection, message: Message) -> None:
        """A message has reached the server."""
        if self.streams.takes(message.subject):
            self._to_storage(sender, message)
        elif not self.show(sender, message) and message.reply:
            self._answer(sender, _nobody(message))

    def _to_storage(self, sender: MemoryConnection, message: Message) -> None:
        """Send a message to JetStream's leader: in order per connection, and never lost unless it expects an answer."""
        now, fate = server_time(), _PROMPT
        if self.faults is not None and message.reply:
            fate = self.faults.storage(sender.name, now)
        if fate.request_s is None:
            return
        at = now + fate.request_s
        if sender.stores_at >= at:
            at = sender.stores_at + _A_MOMENT_S
        if at > now:
            sender.stores_at = at
        self.later(at - now, lambda: self._store(sender, message, fate.answer_s))

    def _store(self, sender: MemoryConnection, message: Message, answer_s: float | None) -> None:
        if not sender.connected:
            return
        heard = not message.subject.startswith(_JETSTREAM) and self.show(sender, message)

        def say(answer: bytes | None, pass_on: Callable[[Callable[[Message], None], object], None]) -> None:
            if message.reply and (answer is not None or not heard):
                said = _nobody(message) if answer is None else Message(message.reply, answer)
                for subscription in self._table.match(message.reply)[0]:
                    if subscription.bus is sender:
                        pass_on(subscription.deliver, said)

        def respond(answer: bytes | None) -> None:
            if answer_s is not None:
                self.later(answer_s, lambda: say(answer, sender.from_leader))

        self.to_or_from_leader(
            sender,
            lambda: self.streams.handle(sender, message, respond),
            lambda: say(self.streams.without_leader(message), sender.arrive),
        )

    def show(self, sender: MemoryConnection, message: Message) -> bool:
        """Send a message to the subscribers of its subject; returns whether there are any."""
        for tap in self._message_taps:
            tap(sender.name, message)
        plain, groups = self._table.match(message.subject)
        if self._split is not None:
            plain, groups = (
                self._within_reach(self._split, sender, plain),
                [near for members in groups if (near := self._within_reach(self._split, sender, members))],
            )
        for subscription in plain:
            self._send(sender.name, subscription, message)
        for members in groups:
            one = members[0] if len(members) == 1 else self.ambient.random.choice(members)
            self._send(sender.name, one, message)
        return bool(plain or groups)

    def _within_reach(
        self, split: Split, sender: MemoryConnection, subscriptions: Sequence[MemorySubscription]
    ) -> list[MemorySubscription]:
        """The subscribers that the sender's server believes to be reachable."""
        if not split.noticed:
            return list(subscriptions)
        side = split.away(sender.name)
        return [one for one in subscriptions if split.away(one.bus.name) is side]

    def _answer(self, sender: MemoryConnection, answer: Message) -> None:
        """The server itself replies to `sender`."""
        for subscription in self._table.match(answer.subject)[0]:
            if subscription.bus is sender:
                self._send(SERVER, subscription, answer)

    def hears(self, bus: MemoryConnection, subject: str) -> bool:
        return any(one.bus is bus for one in self._table.match(subject)[0])

    def tell(self, bus: MemoryConnection, subject: str, message: Message) -> None:
        losses, loop = bus.losses, asyncio.get_running_loop()

        def at_servers() -> None:
            if bus.losses == losses:
                for subscription in self._table.match(subject)[0]:
                    if subscription.bus is bus:
                        bus.from_leader(subscription.deliver, message)

        if self.faults is None:
            at_servers()
            return
        for delay in self.faults.message(SERVER, bus.name, subject, server_time())[:1]:
            loop.call_later(delay, at_servers, context=self.context)

    def _send(self, sender: str, subscription: MemorySubscription, message: Message) -> None:
        split = self._split
        if split is not None and sender != SERVER and split.away(sender) is not split.away(subscription.bus.name):
            split.cross(lambda: self._send(sender, subscription, message))
            return
        if self.faults is None:
            subscription.bus.arrive(subscription.deliver, message)
            return
        loop = asyncio.get_running_loop()
        for delay in self.faults.message(sender, subscription.bus.name, message.subject, server_time()):
            if sender == SERVER:
                subscription.bus.told_at = max(subscription.bus.told_at, server_time() + delay)
            loop.call_later(delay, subscription.bus.arrive, subscription.deliver, message, context=self.context)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` in the server's context, after `delay` seconds (0: now)."""
        if delay <= 0:
            action()
        else:
            asyncio.get_running_loop().call_later(delay, action, context=self.context)

    def pong_s(self, bus: MemoryConnection) -> float:
        """The duration of a ping: its answer arrives after everything that the server sent before."""
        behind_s = bus.told_at - server_time()
        return behind_s + _A_MOMENT_S if behind_s > 0 else 0.0

    def listen(self, subscription: MemorySubscription) -> None:
        self._table.add(subscription)

    def unlisten(self, subscription: MemorySubscription) -> None:
        self._table.remove(subscription)

    def forget(self, bus: MemoryConnection) -> None:
        self._buses.pop(bus, None)
        for subscription in bus.subscriptions:
            self._table.remove(subscription)

    def _lose(self, bus: MemoryBus, *, tell: bool = True) -> None:
        if bus.link not in (ServerLink.UP, ServerLink.CUT):
            return
        bus.link = ServerLink.DOWN
        bus.losses += 1
        bus.held.clear()
        if bus.unheard is not None:
            bus.unheard.clear()
        for subscription in bus.subscriptions:
            self._table.remove(subscription)
        if tell:
            bus.fail_waiting()
            bus.tell(ConnectionEvent.DISCONNECTED)

    # -- for JetStream --------------------------------------------------------------------------------------------

    def stored(self, stream: str, message: StreamMessage) -> None:
        if not stream.startswith(_BUCKET):
            for stored_tap in self._stored_taps:
                stored_tap(stream, message)
        elif self._change_taps:
            entry = _entry(stream, message)
            for tap in self._change_taps:
                tap(stream[len(_BUCKET) :], entry)

    def expired(self, stream: str, message: StreamMessage) -> None:
        if stream.startswith(_BUCKET) and self._change_taps:
            entry = _entry(stream, message)
            if entry.operation is KvOperation.PUT:
                gone = KvEntry(key=entry.key, value=b"", revision=0, operation=KvOperation.DELETE)
                for tap in self._change_taps:
                    tap(stream[len(_BUCKET) :], gone)

    def written(self, writer: str, stream: str, publications: Sequence[Publication]) -> None:
        if self._write_taps and stream.startswith(_BUCKET):
            writes = [_write(stream, *publication) for publication in publications]
            for tap in self._write_taps:
                tap(writer, stream[len(_BUCKET) :], writes)


class MemoryBus(MemoryConnection):
    """A connection to a MemoryServer; implements port.Bus. Created by `MemoryServer.connect`."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        super().__init__(server, name)
        self._opened = OpenedStorage(self)

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> NatsKeyValue:
        return await self._opened.bucket(name, settings, make=make)

    async def stream(self, name: str, settings: StreamSettings, *, make: bool = True) -> Stream:
        return await self._opened.stream(name, settings, make=make)

    async def object_store(self, name: str, settings: BucketSettings) -> ObjectStore:
        return await self._opened.object_store(name, settings)

    async def close(self) -> None:
        self._opened.stop()
        await super().close()


def _nobody(message: Message) -> Message:
    return Message(message.reply, b"", headers={"Status": "503"})


def _key(stream: str, subject: str) -> str:
    return subject[len(stream) + 2 :]  # "KV_name" and "$KV.name.key"


def _entry(stream: str, message: StreamMessage) -> KvEntry:
    gone = is_marker(message.headers)
    return KvEntry(
        key=_key(stream, message.subject),
        value=b"" if gone else message.data,
        revision=message.sequence,
        operation=KvOperation.DELETE if gone else KvOperation.PUT,
    )


def _write(stream: str, subject: str, data: bytes, headers: Mapping[str, str]) -> KvWrite:
    revision, condition = headers.get(EXPECTED), headers.get(EXPECTED_OF)
    return KvWrite(
        key=_key(stream, subject),
        value=None if is_marker(headers) else data,
        revision=None if revision is None else int(revision),
        condition_key=None if condition is None else _key(stream, condition),
    )
