"""A NATS server in memory, for tests, the simulator and users' own tests.

`MemoryServer` stands for the server; `MemoryServer.connect` gives connections that keep every promise of `port`, as the
conformance suite shows. By itself a hub delivers everything, in order, on the next turn of the event loop. Operators'
accidents are methods (`stop`, `start`, `disconnect`, `partition`, `storage_down`); accidents of single messages come
from a `Faults` object.

Times are those of the running loop, so that a virtual loop moves expiry and time-outs along.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from ..storage.opened import OpenedStorage
from .connection import MemoryConnection, MemorySubscription, ServerLink
from .faults import SERVER, Faults, Split, WriteOutcome, server_time
from .jetstream import MemoryJetStream
from .stream_store import EXPECTED, EXPECTED_OF, Publication, StreamStore

_INBOXES = "_INBOX."

Matches = tuple[list["MemorySubscription"], list[list["MemorySubscription"]]]


def _inbox_of(subject: str) -> str:
    """The first two parts of a subject below an inbox, or of a pattern; empty: it is of no one inbox."""
    if not subject.startswith(_INBOXES):
        return ""
    name = subject[: subject.find(".", len(_INBOXES))] if "." in subject[len(_INBOXES) :] else subject
    return "" if "*" in name or ">" in name else name


class RoutingTable:
    """Which listeners match a subject. Those of an inbox are found by it; the other answers are remembered until a
    listener comes or goes."""

    def __init__(self) -> None:
        self._inboxes: dict[str, dict[MemorySubscription, None]] = {}
        self._others: dict[MemorySubscription, None] = {}
        self._wide: dict[MemorySubscription, None] = {}
        """Those of the others that may match in several inboxes."""
        self._known: dict[str, Matches] = {}

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self._inboxes.values()))

    def add(self, listener: MemorySubscription) -> None:
        inbox = _inbox_of(listener.pattern.text)
        if inbox:
            self._inboxes.setdefault(inbox, {})[listener] = None
        else:
            self._others[listener] = None
            self._known.clear()
            if listener.pattern.text[0] in "*>_":
                self._wide[listener] = None

    def remove(self, listener: MemorySubscription) -> None:
        inbox = _inbox_of(listener.pattern.text)
        if inbox:
            listeners = self._inboxes.get(inbox, {})
            listeners.pop(listener, None)
            if not listeners:
                self._inboxes.pop(inbox, None)
        elif listener in self._others:
            del self._others[listener]
            self._known.clear()
            self._wide.pop(listener, None)

    def match(self, subject: str) -> Matches:
        """Plain listeners, and the members of each queue group, in the order in which they subscribed."""
        inbox = _inbox_of(subject)
        if inbox:
            return self._find(subject, (*self._inboxes.get(inbox, ()), *self._wide))
        known = self._known.get(subject)
        if known is None:
            known = self._find(subject, self._others)
            if len(self._known) > 4096:  # subjects made for one answer each
                self._known.clear()
            self._known[subject] = known
        return known

    @staticmethod
    def _find(subject: str, listeners: Iterable[MemorySubscription]) -> Matches:
        plain: list[MemorySubscription] = []
        groups: dict[str, list[MemorySubscription]] = {}
        for listener in listeners:
            if listener.pattern.matches(subject):
                if listener.queue:
                    groups.setdefault(listener.queue, []).append(listener)
                else:
                    plain.append(listener)
        return plain, list(groups.values())


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
        ambient: names of inboxes, and the choice of a queue group's member.
        faults: the fate of each message; None: all arrive at once.
        max_payload: largest body plus headers, in bytes.
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
        """JetStream stands still; see `stand_still`."""
        self._frozen = False
        self._split: Split | None = None
        # Of its own, so that what the server does belongs to no client's task or node.
        self.context = contextvars.Context()
        self._table = RoutingTable()
        self._buses: dict[MemoryConnection, MemoryBus] = {}
        """Each by itself."""
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
        """A new connection. Its handlers run in the context of whoever subscribes.

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
        """See what passes, for checkers and for debugging.

        Args:
            on_message: each message that reaches the server, with its sender's name; not those to JetStream's API.
            on_delivery: each message just before a handler gets it, with the receiver's name.
            on_change: each new revision in a bucket, with the bucket's name; and each key that expires, with the
                revision 0, since that makes none.
            on_write: each write or atomic batch that was taken, after its revisions, with the names of the writer and
                of the bucket, but without times to live. Of a refused one nothing is told.
            on_stored: each message that a stream stores, with the stream's name; those of schedules, too, but not
                those of buckets.
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
        """Names of those who would get a message to that subject now; of a queue group, all members."""
        plain, groups = self._table.match(subject)
        return [one.bus.name for one in itertools.chain(plain, *groups)]

    def store(self, bucket: str) -> StreamStore | None:
        """The stream of a bucket; None: there is none."""
        return self.streams.find(_BUCKET + bucket)

    def peek(self, bucket: str) -> list[KvEntry]:
        """What a bucket holds, without asking over a connection."""
        store = self.store(bucket)
        entries = [] if store is None else [_entry(store.name, message) for message in store.messages.values()]
        return [entry for entry in entries if entry.operation is KvOperation.PUT]

    # -- accidents ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The server goes down: every connection is lost, and with them what memory streams held. Idempotent."""
        if not self.up:
            return
        self.up = False
        for bus in self.connections:
            self._lose(bus)
        self.streams.lose_memory()

    def start(self) -> None:
        """The server is back; clients reconnect at once, unless they are held off or partitioned. Idempotent."""
        if self.up:
            return
        self.up = True
        for bus in self.connections:
            self.reconnect(bus)
        self.streams.resume()

    def disconnect(self, bus: MemoryBus) -> None:
        """Cut one connection; both ends know. It stays down until `reconnect` (or `start`)."""
        self._lose(bus)

    def reconnect(self, bus: MemoryBus) -> None:
        """Let a lost connection come back. Does nothing while the server is down or for a live connection."""
        if not self.up or self._frozen or bus.link is not ServerLink.DOWN:
            return
        bus.link = ServerLink.UP
        for subscription in bus.subscriptions:
            self._table.add(subscription)
        bus.tell(ConnectionEvent.RECONNECTED)

    def partition(self, bus: MemoryBus) -> None:
        """Hold back what passes either way, as a network that swallows packets does: TCP tries again, and nobody
        knows. Ends with `heal` (all comes through, late) or `disconnect` (all is lost)."""
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
        """Hold back what the client sends, or lose it, and nothing else: it hears everything. Ends with `unmute`."""
        if bus.unheard is None:
            bus.unheard, bus.loses = [], loses

    def unmute(self, bus: MemoryBus) -> None:
        """What was held back comes through, late. Idempotent."""
        held, bus.unheard = bus.unheard, None
        for pass_on in held or ():
            bus.depart(pass_on)

    def kill(self, bus: MemoryBus) -> None:
        """The client's process is gone: the server forgets it, and nobody tells the client."""
        if bus.link is not ServerLink.CLOSED:
            self._lose(bus, tell=False)
            bus.link = ServerLink.CLOSED
        self.forget(bus)

    def storage_down(self) -> None:
        """JetStream has no leader: operations fail at once, and what stood at the one before is forgotten. Messages
        go on."""
        self.storage_up = False
        self.streams.forget_requests()

    def storage_back(self) -> None:
        self.storage_up = True
        self.streams.resume()

    def stand_still(self) -> None:
        """JetStream does nothing by itself, and nothing expires, before `go_on`."""
        self.still = True

    def go_on(self) -> None:
        """What has expired meanwhile goes first."""
        self.still = False
        self.streams.resume()

    def freeze(self) -> None:
        """The server stands still: connections stay up, and nothing passes before `thaw`. Idempotent."""
        self._frozen = True
        self.stand_still()
        for bus in self.connections:
            self.partition(bus)

    def thaw(self, lag_s: Callable[[], float] = lambda: 0.0) -> None:
        """What the server does by the clock goes first, then all that was held comes through: of each connection when
        the server comes to it, after `lag_s`."""
        self._frozen = False
        self.go_on()

        def serve(bus: MemoryBus) -> None:
            if not self._frozen:
                self.heal(bus)
                self.reconnect(bus)

        for bus in self.connections:
            self.later(lag_s(), functools.partial(serve, bus))

    def split(self, away: Callable[[str], bool]) -> Split:
        """Let the servers fall apart; `away` says by the name of a connection whether it is on the side where JetStream
        has no leader. Ends with `mend`."""
        self._split = Split(away)
        return self._split

    @property
    def is_split(self) -> bool:
        return self._split is not None

    def mend(self) -> None:
        """All servers hear each other. Idempotent."""
        split, self._split = self._split, None
        if split is not None:
            split.end()
            self.streams.resume()

    # -- for connections ------------------------------------------------------------------------------------------

    def cuts_off(self, bus: MemoryConnection) -> bool:
        """Whether the leader knows that it cannot be reached."""
        return self._split is not None and self._split.noticed and self._split.away(bus.name)

    def to_or_from_leader(
        self, bus: MemoryConnection, pass_on: Callable[[], None], refuse: Callable[[], None] | None = None
    ) -> None:
        """Something is on its way between a connection's server and JetStream's leader. `refuse`: it is known that
        there is none to be reached."""
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
        """On the way from one connection to JetStream's leader: in order, and without losses unless somebody waits for
        the answer."""
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
        """Send a message to those who subscribe its subject; whether there are some."""
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
        """Those that the sender's server believes to be there."""
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
        """Do something as the server, after `delay` seconds (0: now)."""
        if delay <= 0:
            action()
        else:
            asyncio.get_running_loop().call_later(delay, action, context=self.context)

    def pong_s(self, bus: MemoryConnection) -> float:
        """How long a round trip to the server itself takes: the answer comes after what the server sent before."""
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
    """A connection; see port.Bus for what it promises. Made by `MemoryServer.connect`."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        super().__init__(server, name)
        self._opened = OpenedStorage(self)

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> NatsKeyValue:
        return await self._opened.bucket(name, settings, make=make)

    async def stream(self, name: str, settings: StreamSettings) -> Stream:
        return await self._opened.stream(name, settings)

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
