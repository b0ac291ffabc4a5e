"""Creates a stream on first use, and again if a restarted server has lost it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...schemas.errors.base import Disconnected, InvalidSettings, Unavailable
from ..port.bus import ConnectionEvent, NotPermitted, StorageUnavailable
from .api import STREAM_EXISTS, STREAM_NOT_FOUND, ApiError
from .wire import OVERLAP, RESERVED, TOO_MANY_CONSUMERS, UNLIMITED, check_configuration

if TYPE_CHECKING:
    from .api import Transport

log = logging.getLogger("gangline.bus")

_RETRY_S: Final = 0.1
_PATIENCE_S: Final = 2.0
"""An API request without an answer for this long is repeated: its receiver may be gone."""

_MOST_BYTES: Final = 1 << 40
_LEAST_BYTES: Final = 64 * 1024
"""A smaller limit would be of no use."""
_AMPLE_BYTES: Final = 1 << 30
"""A share of this size is no reason for a warning."""
_HARMFUL: Final = "which lets anyone who may write to it harm others"
_SKIPPING: Final = "which loses delayed tasks when its leader changes on a server before 2.15"


class NotOurStream(NotPermitted):
    """Only a user with more permissions can do this, and one may be about to."""


class StreamAdmin:
    """One stream of a connection.

    Args:
        stream: its name on the server.
        label: its name in messages.
        configuration: used to create it; an existing stream is compared with it.
        sources: created before this one: a server that misses a source looks for it less and less often.
        share: see port.StreamSettings.
        first: returns the first sequence of a stream created now; None: 1.
        seen: returns the highest sequence known to be used. A cluster recreates a stream that it lost by itself, and
            counts from the same number again: used sequences are skipped then.
    """

    def __init__(
        self,
        bus: Transport,
        stream: str,
        *,
        label: str,
        configuration: Mapping[str, Any],
        sources: Sequence[StreamAdmin] = (),
        share: float = 0.0,
        first: Callable[[], int] | None = None,
        seen: Callable[[], int] | None = None,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self.label = label
        """Its name in messages."""
        self._configuration = configuration
        self._sources = sources
        self._share = share
        self._first = first
        self._seen = seen
        self.only_read = False
        """Nobody has asked us to create the stream: requests about one that does not exist are refused."""
        self.exists = False
        """Whether the stream existed at the last check; False after every reconnect."""
        self.made = False
        """Whether the stream has ever existed, or was created by us."""
        self.created = ""
        """Creation time, as the server writes it: tells a new stream from an old one of the same name."""
        self._used = False
        """Whether it was as it should be before."""
        self._unusable = ""
        """Why it cannot be used now; empty: it can."""
        self._few_consumers = False
        """Whether the account's consumer limit is below what our streams ask for."""
        self._refused = 0
        """How often the server could not reserve `max_bytes`."""
        self._warned = False
        self._making: asyncio.Future[bool] | None = None
        self._stop_listening = bus.on_connection(self._on_connection)

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is not ConnectionEvent.CLOSED:
            self.exists = False

    async def ensure(self, *, look: bool = False) -> bool:
        """Create the stream if it does not exist; True if it was created now.

        Args:
            look: ask the server even if the stream existed before.

        Raises:
            StorageUnavailable, ServerUnsupported, Disconnected, InvalidSettings.
        """
        self.only_read = False
        if self.exists and not look:
            return False
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(self._made)
        # Shielded: one caller's cancellation must not fail the others.
        return await asyncio.shield(self._making)

    async def restore(self, timeout_s: float) -> bool:
        """Create the stream if it does not exist; True if it was created. No answer within `timeout_s` counts as False,
        not as an error."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.ensure(look=True)
        except (TimeoutError, StorageUnavailable):
            return False

    async def inspect(self) -> None:
        """Find out whether the stream, if it exists, can be used: another may have taken its place.

        Raises:
            InvalidSettings, StorageUnavailable: see `check`.
        """
        try:
            found = await self._bus.api.call(f"STREAM.INFO.{self._stream}", what=f"look at {self.label}")
        except Unavailable:
            return  # whoever reads or writes it learns that
        self.check(found)

    def check(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """See `check_configuration`. What makes it unusable is logged once, and so is the end of that.

        Args:
            found: information about the stream, as the server gives it.

        Raises:
            InvalidSettings: it cannot be used.
            StorageUnavailable: the same, after one that we have used: it may be put right again.
        """
        try:
            changes = check_configuration(self.label, self._configuration, found.get("config") or {})
        except InvalidSettings as error:
            self.exists = False
            if not self._used:
                raise
            if error.message != self._unusable:
                self._unusable = error.message
                log.error(
                    "somebody has replaced %s, and this process waits until that is put right: %s",
                    self.label,
                    error.message,
                    extra={"action": "bus.stream_replaced", "stream": self._stream},
                )
            raise StorageUnavailable(error.message, may_have_started=False) from error
        self._usable()
        self.created = str(found.get("created", ""))
        return changes

    def _usable(self) -> None:
        self._used = True
        if self._unusable:
            self._unusable = ""
            log.info("%s can be used again", self.label, extra={"action": "bus.stream_back", "stream": self._stream})

    async def ask(
        self, operation: str, body: Mapping[str, Any] | None = None, *, what: str, repeatable: bool = True
    ) -> dict[str, Any]:
        """An API request about the stream, which is recreated if it vanished and is not only read; repeated until the
        storage timeout is over.

        Args:
            repeatable: repeat it even if it may have been carried out.

        Raises:
            ApiError: refused for good.
            StorageUnavailable, Disconnected.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._bus.api.timeout_s
        while True:
            if not self.only_read:
                await self.ensure()
            timeout_s = min(_PATIENCE_S, max(deadline - loop.time(), 0.1))
            try:
                await self._bus.api.require(timeout_s)
                return await self._bus.api.call(operation, body, what=what, timeout_s=timeout_s)
            except StorageUnavailable as error:
                if isinstance(error, ApiError) and error.number == STREAM_NOT_FOUND and not self.only_read:
                    self.exists = False
                elif isinstance(error, ApiError) and not error.temporary:
                    raise
                over = loop.time() + _RETRY_S > deadline
                if over or (error.may_have_started and not repeatable):
                    raise
            await asyncio.sleep(_RETRY_S)

    def stop(self) -> None:
        """The bus closes."""
        self._stop_listening()
        if self._making is not None:
            self._making.cancel()

    def _made(self, task: asyncio.Future[bool]) -> None:
        self._making = None
        if not task.cancelled():
            task.exception()  # those who waited have it; perhaps nobody did

    async def _make(self) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._bus.api.timeout_s
        refusal: NotOurStream | None = None
        while True:
            patience_s = min(_PATIENCE_S, max(deadline - loop.time(), 0.1))
            try:
                await self._bus.api.require(patience_s)
                made = await self._look_or_create(patience_s)
            except (StorageUnavailable, NotOurStream) as error:
                # A cluster that has just started or lost its leader: no answer or a refusal for a while.
                if self._unusable or (isinstance(error, ApiError) and not error.temporary):
                    raise
                refusal = error if isinstance(error, NotOurStream) else refusal
                if loop.time() + _RETRY_S > deadline:
                    if refusal is not None and refusal is not error:
                        raise refusal from error  # it says more than a last answer that did not come
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            if not self._bus.connected:
                raise Disconnected("the connection was lost a moment ago: try again when it is back")
            self.exists = self.made = True
            return made

    async def _look_or_create(self, timeout_s: float) -> bool:
        api = self._bus.api
        try:
            found = await api.call(f"STREAM.INFO.{self._stream}", what=f"look at {self.label}", timeout_s=timeout_s)
        except ApiError as error:
            if error.number != STREAM_NOT_FOUND:
                raise
        else:
            await self._compare(found, timeout_s)
            await self._skip_used(found.get("state") or {}, timeout_s)
            await self._limit(found, timeout_s)
            return False
        for source in self._sources:
            await source.ensure(look=True)
        configuration = dict(self._configuration)
        if self._first is not None:
            configuration["first_seq"] = self._first()
        if self._refused > 1:
            configuration["max_bytes"] = UNLIMITED
        if self._few_consumers:
            configuration["max_consumers"] = UNLIMITED
        try:
            made = await api.call(
                f"STREAM.CREATE.{self._stream}", configuration, what=f"make {self.label}", timeout_s=timeout_s
            )
        except NotPermitted as error:
            raise NotOurStream(
                f"{self.label} does not exist, and this user may not create it ({error.message}): first start a "
                f"process that may, for example a dispatcher or a coordinator",
                details=error.details,
            ) from error
        except ApiError as error:
            if error.number == OVERLAP:
                raise InvalidSettings(
                    f"{self.label} cannot be created, because another stream has its subjects: an earlier version "
                    "(docs/how-to/run-in-production.md, 'Upgrade the streams') or somebody else created that one. "
                    "Remove it if you do not need it, or use another namespace"
                ) from error
            if error.number == TOO_MANY_CONSUMERS and not self._few_consumers:
                self._few_consumers = True
                return await self._look_or_create(timeout_s)
            if configuration.get("max_bytes", UNLIMITED) != UNLIMITED and _is_full(error):
                await self._not_reserved(configuration["max_bytes"], error)
                return await self._look_or_create(timeout_s)
            if error.number != STREAM_EXISTS:  # another process was faster
                raise
            return False
        await self._limit(made, timeout_s)
        self.created = str(made.get("created", ""))
        self._usable()
        self._report_domain()
        return True

    async def _not_reserved(self, size: int, error: ApiError) -> None:
        self._refused += 1
        if self._refused == 1:
            await asyncio.sleep(_RETRY_S)  # somebody may be about to find a share, see `_reserve_share`
            return
        log.warning(
            "the server cannot reserve the %d bytes of %s, which gets %s: give it more space, or set "
            "GANGLINE_MAX_BYTES (%s)",
            size,
            self.label,
            "a share of what is left" if self._share else "no limit",
            error.message,
            extra={"action": "bus.stream_unbounded", "stream": self._stream},
        )

    async def _limit(self, found: Mapping[str, Any], timeout_s: float) -> None:
        """Limit a stream that has no limit, so that what waits in it never takes the room that others need."""
        configuration = found.get("config") or {}
        if not self._share or int(configuration.get("max_bytes") or UNLIMITED) > 0:
            return
        used = int((found.get("state") or {}).get("bytes") or 0)
        try:
            async with self._bus.api.reserving:
                share = await self._reserve_share(configuration, used, timeout_s)
        except NotPermitted as error:
            self._share = 0.0
            self._warn_unlimited("this user may not limit it: open it once as an operator, or set", error.message)
            return
        if share is None:
            self._warn_unlimited("the server has no room left to reserve: give it more storage, or set")
            return
        log.log(
            logging.INFO if share >= _AMPLE_BYTES else logging.WARNING,
            "%s is limited to %d bytes, a share of what the server can still reserve: set GANGLINE_MAX_BYTES for "
            "another limit",
            self.label,
            share,
            extra={"action": "bus.stream_limited", "stream": self._stream, "bytes": share},
        )

    async def _reserve_share(self, configuration: Mapping[str, Any], used: int, timeout_s: float) -> int | None:
        """Limit the stream to its share, and return that; None: there is no room to reserve.

        No request tells how much the server can reserve, only whether it can reserve so much. What is reserved to find
        that out is given back with the next request; who is refused meanwhile tries again.
        """

        async def reserve(size: int) -> bool:
            update = {**configuration, "max_bytes": size}
            what = f"limit {self.label}"
            try:
                await self._bus.api.call(f"STREAM.UPDATE.{self._stream}", update, what=what, timeout_s=timeout_s)
            except ApiError as error:
                if not _is_full(error):
                    raise
                return False
            return True

        for _ in range(2):
            size = _MOST_BYTES
            while size >= max(_LEAST_BYTES / self._share, used):  # nothing that is stored is dropped
                if await reserve(size):
                    size = size * 3 // 2 if await reserve(size * 3 // 2) else size
                    share = max(int(size * self._share), used)
                    await reserve(share)
                    return share
                size //= 2
            await asyncio.sleep(_RETRY_S)
        return None

    def _warn_unlimited(self, why: str, refusal: str = "") -> None:
        log.warning(
            "%s has no limit, so it can take the room that tasks need to end; %s GANGLINE_MAX_BYTES to a number of "
            "bytes for new streams%s",
            self.label,
            why,
            f" ({refusal})" if refusal else "",
            extra={"action": "bus.stream_unlimited", "stream": self._stream},
        )

    def _report_domain(self) -> None:
        domain, is_ledger = self._bus.jetstream_domain, self._configuration.get("allow_atomic")
        if domain and is_ledger:  # who has another ledger is elsewhere
            log.warning(
                "created %s on %s: processes that use a server of another JetStream domain are another system, and see "
                "nothing of this one",
                self.label,
                self._bus.server_place,
                extra={"action": "bus.ledger_created", "stream": self._stream, "domain": domain},
            )

    async def _compare(self, info: Mapping[str, Any], timeout_s: float) -> None:
        changes, found = self.check(info), info.get("config") or {}
        if changes or self._unstarted(found):
            try:
                if self._unstarted(found):
                    changes["sources"] = await self._started(found["sources"], timeout_s)
                await self._bus.api.call(
                    f"STREAM.UPDATE.{self._stream}",
                    {**found, **changes},
                    what=f"bring {self.label} up to date",
                    timeout_s=timeout_s,
                )
            except (NotPermitted, ApiError) as error:
                remedy = f"open it once as an operator, or edit it ({error.message})"
                if set(changes) - {"sources"}:
                    self._warn(", ".join(changes), _HARMFUL, remedy)
                else:
                    self._warn("sources without opt_start_seq", _SKIPPING, remedy)
            else:
                log.info("updated %s: %s", self.label, changes, extra={"action": "bus.stream_updated"})
        if found.get("allow_msg_schedules") and not self._configuration.get("allow_msg_schedules"):
            remedy = f"recreate it when you can do without it (nats stream rm {self._stream})"
            self._warn("allow_msg_schedules", _HARMFUL, remedy)

    def _unstarted(self, found: Mapping[str, Any]) -> set[str]:
        """Names of the stream's sources that have no start, as ours would have."""
        started = {each["name"] for each in self._configuration.get("sources", ()) if each.get("opt_start_seq")}
        return {each["name"] for each in found.get("sources") or () if not each.get("opt_start_seq")} & started

    async def _started(self, sources: Sequence[Mapping[str, Any]], timeout_s: float) -> list[dict[str, Any]]:
        """The same, beginning with what comes next: what is there has been taken, and may have been removed here."""
        unstarted, started = self._unstarted({"sources": sources}), list[dict[str, Any]]()
        for each in sources:
            if each["name"] in unstarted:
                name = each["name"]
                info = await self._bus.api.call(f"STREAM.INFO.{name}", what=f"look at {name}", timeout_s=timeout_s)
                started.append({**each, "opt_start_seq": int(info["state"]["last_seq"]) + 1})
            else:
                started.append(dict(each))
        return started

    def _warn(self, fields: str, why: str, remedy: str) -> None:
        if not self._warned:
            log.warning(
                "%s has %s as an earlier version made it, %s: %s",
                self.label,
                fields,
                why,
                remedy,
                extra={"action": "bus.stream_outdated", "stream": self._stream},
            )
        self._warned = True

    async def _skip_used(self, state: Mapping[str, Any], timeout_s: float) -> None:
        if self._first is None or self._seen is None or state.get("messages") != 0:
            return
        if int(state.get("last_seq") or 0) < self._seen():
            skip = {"seq": self._first()}
            try:
                await self._bus.api.call(
                    f"STREAM.PURGE.{self._stream}", skip, what=f"go on in {self.label}", timeout_s=timeout_s
                )
            except NotPermitted as error:
                raise NotOurStream(
                    f"{self.label} was lost and starts again, and this user may not let it continue where it was "
                    f"({error.message}): first start a process that may, for example a coordinator or a dispatcher",
                    details=error.details,
                ) from error


def _is_full(error: ApiError) -> bool:
    no_peers = error.number == 10005 and "storage" in str(error.details.get("description"))
    return error.number in RESERVED or no_peers


class StreamOwner(Protocol):
    """What readers and consumers need from their stream."""

    name: str
    bus: Transport
    upkeep: StreamAdmin
