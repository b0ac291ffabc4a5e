"""A stream on JetStream."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import GanglineError, InvalidRequest
from ..port.bus import (
    Consumer,
    ConsumerSettings,
    ConsumerState,
    Publication,
    Published,
    Retention,
    StreamHandler,
    StreamMessage,
    StreamSettings,
    StreamState,
)
from ..port.subjects import Subscription
from ..streams.pull_consumer import PullConsumer
from .api import CONSUMER_NOT_FOUND, NO_MESSAGE, STREAM_NOT_FOUND, ApiError
from .ordered_consumer import OrderedConsumer
from .publisher import Publisher
from .pull_transport import open_consumer
from .stream_admin import StreamAdmin
from .wire import check_name, consumer_state, stored_message, stream_configuration

if TYPE_CHECKING:
    from .api import Transport

_NOT_DELETED: Final = 10043
_DELETE_FAILED: Final = 10057
_NOTHING_TO_DELETE: Final = ("no message found", "stream store EOF")
"""Descriptions of the error if there was no such message."""


class NatsStream:
    """Implements port.Stream. Created by `NatsBus.stream`.

    Args:
        more: additional configuration.
        sources: see StreamAdmin.
    """

    def __init__(
        self,
        bus: Transport,
        name: str,
        settings: StreamSettings,
        *,
        more: Mapping[str, Any] | None = None,
        sources: Sequence[StreamAdmin] = (),
    ) -> None:
        self.name = check_name(name, "stream")
        self.bus = bus
        self.settings = settings
        self.upkeep = StreamAdmin(
            bus,
            name,
            label=f"the stream {name}",
            configuration={**stream_configuration(name, settings), **(more or {})},
            sources=sources,
            share=settings.share,
        )
        self._publisher = Publisher(bus, name, self.upkeep, settings.subjects, keeps_old=settings.keeps_old)
        self._consumers: set[PullConsumer] = set()
        self._readings: dict[OrderedConsumer, None] = {}

    def __repr__(self) -> str:
        return f"<NatsStream {self.name!r}, {len(self._consumers)} consumers, {len(self._readings)} readers>"

    # -- messages -------------------------------------------------------------------------------------------------

    def publish(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, Published]:
        return self._publisher.publish(subject, data, headers, timeout_s)

    def publish_many(
        self, messages: Sequence[Publication], *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, list[Published | GanglineError]]:
        return self._publisher.publish_many(messages, timeout_s)

    async def state(self, pattern: str | None = None) -> StreamState:
        subjects: dict[str, int] = {}
        body: dict[str, Any] | None = None if pattern is None else {"subjects_filter": pattern, "offset": 0}
        while True:
            found = await self._ask(f"STREAM.INFO.{self.name}", body, what=f"look at the stream {self.name}")
            if found is None:
                return StreamState(messages=0, bytes=0, first_sequence=0, last_sequence=0, subjects={})
            page = found["state"].get("subjects") or {}
            subjects.update(page)
            if body is None or not page or len(subjects) >= int(found.get("total", 0)):
                break
            body["offset"] += len(page)  # the server lists this many subjects at once
        state = found["state"]
        return StreamState(
            messages=int(state["messages"]),
            bytes=int(state["bytes"]),
            first_sequence=int(state["first_seq"]),
            last_sequence=int(state["last_seq"]),
            subjects=subjects,
            max_bytes=int((found.get("config") or {}).get("max_bytes") or -1),
            created=str(found.get("created", "")),
        )

    async def get(self, sequence: int) -> StreamMessage | None:
        return await self._read({"seq": sequence})

    async def next(self, pattern: str, sequence: int = 1) -> StreamMessage | None:
        return await self._read({"seq": sequence, "next_by_subj": pattern})

    async def last(self, pattern: str) -> StreamMessage | None:
        return await self._read({"last_by_subj": pattern})

    async def _read(self, query: Mapping[str, Any]) -> StreamMessage | None:
        try:
            found = await self._ask(f"STREAM.MSG.GET.{self.name}", query, what=f"read from {self.name}")
        except ApiError as error:
            if error.number == NO_MESSAGE:
                return None
            raise
        return None if found is None else stored_message(found["message"])

    async def delete(self, sequence: int) -> bool:
        try:
            found = await self._ask(
                f"STREAM.MSG.DELETE.{self.name}",
                {"seq": sequence, "no_erase": True},
                what=f"delete message {sequence} of {self.name}",
                repeatable=False,
            )
        except ApiError as error:
            failed = error.number == _DELETE_FAILED and error.details.get("description") in _NOTHING_TO_DELETE
            if failed or error.number == _NOT_DELETED:
                return False
            raise
        return found is not None

    async def purge(self, pattern: str, *, before: int | None = None) -> int:
        query: dict[str, Any] = {"filter": pattern}
        if before is not None:
            query["seq"] = before
        found = await self._ask(
            f"STREAM.PURGE.{self.name}", query, what=f"purge {pattern} of {self.name}", repeatable=False
        )
        return 0 if found is None else int(found.get("purged", 0))

    async def read(self, pattern: str, handler: StreamHandler, *, start: int = 1) -> Subscription:
        if self.settings.retention is Retention.WORK_QUEUE:
            raise InvalidRequest(f"stream {self.name!r} is a work queue: consume it, its messages cannot be read")
        reading = OrderedConsumer(self, pattern, handler, start, on_end=self._forget)
        self._readings[reading] = None
        try:
            await reading.start()
        except BaseException:
            self._forget(reading)
            raise
        return reading

    def _forget(self, reading: OrderedConsumer) -> None:
        self._readings.pop(reading, None)

    # -- consumers ------------------------------------------------------------------------------------------------

    async def consume(
        self,
        name: str,
        settings: ConsumerSettings,
        handler: StreamHandler,
        *,
        on_lost: Callable[[], None] | None = None,
        on_acknowledged: Callable[[list[int]], None] | None = None,
    ) -> Consumer:
        consumer = await open_consumer(
            self,
            check_name(name, "consumer"),
            settings,
            handler,
            on_lost=on_lost,
            on_acknowledged=on_acknowledged,
            on_end=self._consumers.discard,
        )
        self._consumers.add(consumer)
        return consumer

    async def consumers(self) -> list[ConsumerState]:
        found: dict[str, ConsumerState] = {}
        offset = 0
        while True:
            page = await self._ask(
                f"CONSUMER.LIST.{self.name}", {"offset": offset}, what=f"list the consumers of {self.name}"
            )
            infos = (page or {}).get("consumers") or []
            found.update((str(info["name"]), consumer_state(info)) for info in infos)
            offset += len(infos)
            if not page or not infos or offset >= int(page.get("total", 0)):
                return list(found.values())

    async def delete_consumer(self, name: str) -> bool:
        try:
            found = await self._ask(
                f"CONSUMER.DELETE.{self.name}.{check_name(name, 'consumer')}",
                what=f"delete the consumer {name} of {self.name}",
                repeatable=False,
            )
        except ApiError as error:
            if error.number == CONSUMER_NOT_FOUND:
                return False
            raise
        return found is not None

    async def _ask(
        self, operation: str, body: Mapping[str, Any] | None = None, *, what: str, repeatable: bool = True
    ) -> dict[str, Any] | None:
        """None: the stream does not exist, and is only read."""
        try:
            return await self.upkeep.ask(operation, body, what=what, repeatable=repeatable)
        except ApiError as error:
            if error.number == STREAM_NOT_FOUND and self.upkeep.only_read:
                return None
            raise

    def stop(self) -> None:
        """The bus closes."""
        for reading in list(self._readings):
            reading.stop()
        self._publisher.stop()
        self.upkeep.stop()
