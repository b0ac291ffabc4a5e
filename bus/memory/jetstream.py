"""JetStream in memory: its API, publications to streams, and acknowledgements.

Requests are the messages that a real server would get, so tests and simulations run the same client code as users do.
Answers contain only what that code reads.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

from ..jetstream.api import CONSUMER_NOT_FOUND, NO_MESSAGE, STREAM_EXISTS, STREAM_NOT_FOUND
from ..jetstream.wire import ACK_PREFIX, OVERLAP, SECOND_NS
from ..nats_client.protocol import encode_headers
from ..port.bus import Message, StreamMessage
from ..port.subjects import SubjectPattern, overlap
from .connection import Hub, MemoryConnection
from .consumer_store import ConsumerStore, DeliveryInbox, PullRequest, PushConsumerStore
from .stream_store import JetStreamRefusal, StreamConfiguration, StreamStore, utc_text

API_PREFIX: Final = "$JS.API."
_NEXT_PREFIX: Final = f"{API_PREFIX}CONSUMER.MSG.NEXT."
_MOST_KNOWN: Final = 4096
_BATCH_ID: Final = "Nats-Batch-Id"

Respond = Callable[[bytes | None], None]
"""Answers a message. None: there are no responders."""
Api = Callable[["MemoryJetStream", MemoryConnection, list[str], dict[str, Any]], dict[str, Any] | str]
"""A request's sender, the names in its subject, and its body; returns the answer, or its JSON."""


class MemoryJetStream:
    """The streams of an in-memory server, buckets among them. Implements stream_store.StreamWatch."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._stores: dict[str, StreamStore] = {}
        self._takers: dict[str, StreamStore | None] = {}
        """Cache: the stream of each subject that was looked up. Limited in number."""
        self._held = 0
        """Number of calls of `hold_sources` without a `release_sources`."""

    def __repr__(self) -> str:
        return f"<MemoryJetStream {list(self._stores.values())!r}>"

    def find(self, name: str) -> StreamStore | None:
        return self._stores.get(name)

    def running(self) -> bool:
        return self._hub.up and self._hub.storage_up and not self._hub.still

    def still(self) -> bool:
        return self._hub.still

    def stored(self, store: StreamStore, message: StreamMessage) -> None:
        self._hub.stored(store.name, message)
        if not self._held:
            for other in list(self._stores.values()):
                other.take_from(store.name, message)

    def expired(self, store: StreamStore, message: StreamMessage) -> None:
        self._hub.expired(store.name, message)

    def takes(self, subject: str) -> bool:
        """Whether JetStream handles the subject: an API request, an acknowledgement, or a stream's message."""
        return subject.startswith((API_PREFIX, ACK_PREFIX)) or self._taker(subject) is not None

    def _taker(self, subject: str) -> StreamStore | None:
        if subject not in self._takers:
            if len(self._takers) >= _MOST_KNOWN:
                self._takers.clear()
            found = (store for store in self._stores.values() if store.takes(subject))
            self._takers[subject] = next(found, None)
        return self._takers[subject]

    # -- messages -------------------------------------------------------------------------------------------------

    def handle(self, sender: MemoryConnection, message: Message, respond: Respond) -> None:
        """Process a message that has reached the leader."""
        subject = message.subject
        if subject.startswith(API_PREFIX) and not subject.startswith(_NEXT_PREFIX):
            respond(self._call(sender, message))
        elif not self._hub.storage_up:
            respond(None)
        elif subject.startswith(_NEXT_PREFIX):
            self._next(sender, message, respond)
        elif subject.startswith(ACK_PREFIX):
            respond(self._acknowledge(message))
        elif (store := self._taker(subject)) is None:
            respond(None)
        else:
            self._publish(sender, store, message, respond)

    @staticmethod
    def without_leader(message: Message) -> bytes | None:
        """The answer of a server that knows of no leader; None: there are no responders."""
        return _NO_LEADER if message.subject.startswith(API_PREFIX) else None

    def _publish(self, sender: MemoryConnection, store: StreamStore, message: Message, respond: Respond) -> None:
        headers = message.headers or {}
        try:
            if _BATCH_ID in headers:
                written = store.batch(message.subject, message.data, headers)
                if not written:
                    return
                sequence, duplicate = store.last_sequence, False
            else:
                sequence, duplicate = store.publish(message.subject, message.data, headers)
                written = [] if duplicate else [(message.subject, message.data, dict(headers))]
        except JetStreamRefusal as refusal:
            respond(json.dumps({"error": refusal.error, "stream": store.name, "seq": 0}).encode())
            return
        if written:
            self._hub.written(sender.name, store.name, written)
        more = ',"duplicate":true' if duplicate else ""
        respond(f'{{"stream":"{store.name}","seq":{sequence}{more}}}'.encode())

    def _next(self, sender: MemoryConnection, message: Message, respond: Respond) -> None:
        found = self._pull_consumer(*message.subject[len(_NEXT_PREFIX) :].split("."))
        if found is None:
            respond(None)
            return
        query = json.loads(message.data)
        to = DeliveryInbox(self._hub, sender, sender.losses, message.reply)
        found.ask(PullRequest(to, query["batch"], query["expires"] / SECOND_NS, query["idle_heartbeat"] / SECOND_NS))

    def _acknowledge(self, message: Message) -> bytes | None:
        _, _, stream, consumer, _, sequence, *_ = message.subject.split(".")
        found = self._pull_consumer(stream, consumer)
        if found is None:
            return None
        if message.data.startswith(b"-NAK"):
            found.refuse(int(sequence))
        else:
            found.acknowledge(int(sequence))
        return b""

    def _pull_consumer(self, stream: str, consumer: str) -> ConsumerStore | None:
        store = self._stores.get(stream)
        found = None if store is None else store.consumers.get(consumer)
        return found if isinstance(found, ConsumerStore) else None

    def _call(self, sender: MemoryConnection, message: Message) -> bytes:
        words = message.subject[len(API_PREFIX) :].split(".")
        depth = 3 if words[1:2] == ["MSG"] else 2
        handler = _HANDLERS.get(".".join(words[:depth]))
        if not self._hub.storage_up:
            return _NO_LEADER
        try:
            if handler is None:
                raise JetStreamRefusal(10025, f"{message.subject} is not served in memory", status=501)
            answer = handler(self, sender, words[depth:], json.loads(message.data) if message.data else {})
        except JetStreamRefusal as refusal:
            answer = {"error": refusal.error}
        return (answer if isinstance(answer, str) else json.dumps(answer)).encode()

    # -- streams --------------------------------------------------------------------------------------------------

    def _store(self, names: list[str]) -> StreamStore:
        found = self._stores.get(names[0])
        if found is None:
            raise JetStreamRefusal(STREAM_NOT_FOUND, "stream not found", status=404)
        return found

    def _account(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        return {"streams": len(self._stores)}

    def _create(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        if names[0] in self._stores:
            raise JetStreamRefusal(STREAM_EXISTS, "stream name already in use with a different configuration")
        configuration = StreamConfiguration.parse(body)
        for other in self._stores.values():
            for one in other.configuration.patterns:
                if any(overlap(one.text, pattern.text) for pattern in configuration.patterns):
                    raise JetStreamRefusal(OVERLAP, "subjects overlap with an existing stream")
        made = StreamStore(configuration, self, context=self._hub.context, wall=self._hub.ambient.wall)
        self._stores[made.name] = made
        self._takers.clear()
        if not self._held:
            self._resume_sources(made)
        return self._info(made)

    def _update(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        store = self._store(names)
        store.configuration = StreamConfiguration.parse(body)
        self._takers.clear()
        return self._info(store)

    def _delete(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        self._lose(self._store(names))
        return {"success": True}

    def _look(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        store, wanted = self._store(names), body.get("subjects_filter")
        info = self._info(store)
        if wanted:
            subjects = store.counts(SubjectPattern(wanted))
            info["state"]["subjects"] = subjects
            info["total"] = len(subjects)
        return info

    @staticmethod
    def _info(store: StreamStore) -> dict[str, Any]:
        state = {
            "messages": len(store.messages),
            "bytes": store.bytes,
            "first_seq": store.first_sequence if store.last_sequence else 0,
            "last_seq": store.last_sequence,
            "consumer_count": len(store.consumers),
        }
        return {"config": store.configuration.fields, "created": store.created, "state": state}

    def _purge(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        store, before = self._store(names), body.get("seq")
        purged = store.purge(SubjectPattern(body.get("filter", ">")), before)
        if before is not None and "filter" not in body:
            store.skip_to(before)
        return {"success": True, "purged": purged}

    def _get(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> str:
        store = self._store(names)
        if "last_by_subj" in body:
            found = store.last(body["last_by_subj"])
        elif "next_by_subj" in body:
            found = next(store.after(body["seq"], SubjectPattern(body["next_by_subj"])), None)
        else:
            found = store.messages.get(body["seq"])
        if found is None:
            raise JetStreamRefusal(NO_MESSAGE, "no message found", status=404)
        headers = base64.b64encode(encode_headers(found.headers)).decode() if found.headers else ""
        data = base64.b64encode(found.data).decode()
        return (
            f'{{"message":{{"subject":{json.dumps(found.subject)},"seq":{found.sequence},"hdrs":"{headers}",'
            f'"data":"{data}","time":"{utc_text(found.at)}"}}}}'
        )

    def _remove(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        if not self._store(names).remove(body["seq"]):
            raise JetStreamRefusal(10043, "no message found")
        return {"success": True}

    # -- consumers ------------------------------------------------------------------------------------------------

    def _consumer(self, names: list[str]) -> ConsumerStore | PushConsumerStore:
        found = self._store(names).consumers.get(names[1])
        if not isinstance(found, ConsumerStore | PushConsumerStore):
            raise JetStreamRefusal(CONSUMER_NOT_FOUND, "consumer not found", status=404)
        return found

    def _create_consumer(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        store, fields, name = self._store(names), body["config"], names[1]
        found = store.consumers.get(name)
        made: ConsumerStore | PushConsumerStore
        if isinstance(found, ConsumerStore | PushConsumerStore):
            if found.fields != fields:
                raise JetStreamRefusal(10148, "consumer already exists")
            return self._consumer_info(store, found)
        created = utc_text(self._hub.ambient.wall())
        if "deliver_subject" in fields:
            to = DeliveryInbox(self._hub, sender, sender.losses, fields["deliver_subject"])
            made = PushConsumerStore(store, name, fields, to, created)
        else:
            if store.configuration.work_queue:
                self._must_be_unique(store, fields["filter_subject"])
            made = ConsumerStore(store, name, fields, created)
        info = self._consumer_info(store, made)
        store.consumers[name] = made
        made.signal()
        return info

    @staticmethod
    def _must_be_unique(store: StreamStore, wanted: str) -> None:
        for other in store.consumers.values():
            if isinstance(other, ConsumerStore) and overlap(other.settings.filter, wanted):
                raise JetStreamRefusal(10100, "filtered consumer not unique on workqueue stream")

    @staticmethod
    def _consumer_info(store: StreamStore, consumer: ConsumerStore | PushConsumerStore) -> dict[str, Any]:
        return {
            "name": consumer.name,
            "stream_name": store.name,
            "created": consumer.created,
            "config": consumer.fields,
            **consumer.info(),
        }

    def _look_at_consumer(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        return self._consumer_info(self._store(names), self._consumer(names))

    def _list_consumers(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        store = self._store(names)
        found = [self._consumer_info(store, self._consumer([store.name, name])) for name in store.consumers]
        return {"total": len(found), "consumers": found[body.get("offset", 0) :]}

    def _delete_consumer(self, sender: MemoryConnection, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        self._store(names).drop_consumer(self._consumer(names).name)
        return {"success": True}

    # -- outages --------------------------------------------------------------------------------------------------

    def _lose(self, store: StreamStore) -> None:
        del self._stores[store.name]
        self._takers.clear()
        store.discard()

    def lose_memory(self) -> None:
        """The server stops: memory streams, push consumers, and the ids of messages that are not stored any more are
        lost."""
        for store in list(self._stores.values()):
            if store.configuration.in_memory:
                self._lose(store)
            else:
                store.forget_removed()
                for name in [each.name for each in store.consumers.values() if isinstance(each, PushConsumerStore)]:
                    store.drop_consumer(name)

    def forget_requests(self) -> None:
        """The leader is lost: its pending pull requests get no answer."""
        for store in self._stores.values():
            for consumer in store.consumers.values():
                if isinstance(consumer, ConsumerStore):
                    consumer.drop_requests()

    @property
    def sourcing(self) -> bool:
        """Whether any stream has a source."""
        return any(store.configuration.sources for store in self._stores.values())

    def hold_sources(self) -> None:
        """Stop all streams from taking messages from their sources, until `release_sources`; calls may be nested. A
        real server needs some time to find the sources again after a stream has lost its leader."""
        self._held += 1

    def release_sources(self) -> None:
        """End a `hold_sources`; after the last one, all streams resume. See `StreamStore.resume_source`."""
        self._held -= 1
        if not self._held:
            for store in self._stores.values():
                self._resume_sources(store)

    def _resume_sources(self, store: StreamStore) -> None:
        for source in store.configuration.sources:
            if (origin := self._stores.get(source.name)) is not None:
                store.resume_source(source, origin)

    def resume(self) -> None:
        """Storage works again. Messages that have expired meanwhile are removed first."""
        for store in list(self._stores.values()):
            store.expire()
        for store in list(self._stores.values()):
            store.resume()


_HANDLERS: Final[dict[str, Api]] = {
    "INFO": MemoryJetStream._account,
    "STREAM.INFO": MemoryJetStream._look,
    "STREAM.CREATE": MemoryJetStream._create,
    "STREAM.UPDATE": MemoryJetStream._update,
    "STREAM.DELETE": MemoryJetStream._delete,
    "STREAM.PURGE": MemoryJetStream._purge,
    "STREAM.MSG.GET": MemoryJetStream._get,
    "STREAM.MSG.DELETE": MemoryJetStream._remove,
    "CONSUMER.CREATE": MemoryJetStream._create_consumer,
    "CONSUMER.INFO": MemoryJetStream._look_at_consumer,
    "CONSUMER.LIST": MemoryJetStream._list_consumers,
    "CONSUMER.DELETE": MemoryJetStream._delete_consumer,
}
_NO_LEADER: Final = json.dumps(
    {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}
).encode()
