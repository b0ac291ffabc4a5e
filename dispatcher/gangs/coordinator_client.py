"""Requests to the leading coordinator. Only the leader subscribes, so "no responders" means that none leads."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from ...bus.port.bus import Bus, Message, NoResponders, NotPermitted, RequestTimeout
from ...bus.rpc.requester import read_answer, timeout_of
from ...runtime.timers import Backoff
from ...schemas.errors.base import (
    ClosedError,
    Disconnected,
    GangEnded,
    GanglineError,
    GangNotFormed,
    MalformedMessage,
    NoCoordinator,
    Unavailable,
    UnknownGang,
)
from ...schemas.messages.gangs import AcquireRequest, GangEvent, GangReply, GetRequest, OwnedRequest
from ...schemas.names import GangOperation, Names
from ...telemetry.logs import logger_for
from .owner_core import RENEWALS_PER_TTL

_log = logger_for("dispatcher")
M = TypeVar("M", bound=BaseModel)

ASK_AGAIN_FIRST_S: Final = 1.0
ASK_AGAIN_S: Final = 5.0
"""A request without an answer for this long is sent again, because a new leader does not have the queue of the old one.
The first time after a second, then after twice as long each time, up to this."""
_LAST_WORD_S: Final = 1.0
"""How long after the deadline to wait for the coordinator's report why the gang was not formed."""
_LAST_ASK_S: Final = 0.25
"""A request is not sent again less than this before the deadline: the previous one waits for the final report."""
_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_RELEASE_S: Final = 10.0
"""How long a release is retried, plus the grace time if a coordinator leads: longer than an election takes. After that,
the gang's time to live ends it."""
_ANY_GANG: Final = GetRequest(id="-").model_dump_json().encode()
_PROMPT_S: Final = 0.5
"""A leader answers a request about any gang within this time."""


class CoordinatorClient:
    """Acquire, renew, release."""

    def __init__(self, bus: Bus, names: Names) -> None:
        self._bus = bus
        self._names = names
        self._publicly = False
        """Whether the last coordinator that answered does not listen on private subjects."""

    async def ask(self, operation: GangOperation, request: BaseModel, timeout_s: float) -> GangReply:
        """Send one request about a gang. Raises as `ask_for`."""
        return await self.ask_for(GangReply, operation, request, timeout_s)

    async def ask_for(self, answer: type[M], operation: GangOperation, request: BaseModel, timeout_s: float) -> M:
        """Send one request.

        Raises:
            NoCoordinator: no coordinator leads.
            RequestTimeout, Disconnected: no answer.
            GanglineError: the coordinator's error answer.
        """
        # Defaults are omitted: a coordinator of an earlier version may not know every field.
        body = request.model_dump_json(exclude_defaults=True).encode()
        try:
            message = await self._request(operation, body, timeout_s)
        except NoResponders as error:
            raise NoCoordinator(
                "no coordinator leads right now: if leaders are changing, ask again; if none runs, start one with "
                "'gangline coordinator'"
            ) from error
        except RequestTimeout as error:
            raise timeout_of("the coordinator", error) from error
        return read_answer(message, answer, "the coordinator")

    async def _request(self, operation: GangOperation, body: bytes, timeout_s: float) -> Message:
        public = self._names.gang(operation)
        try:
            answer = await self._bus.request(self._names.private(public), body, timeout_s=timeout_s)
        except NoResponders:
            # Coordinators of earlier versions listen on public subjects only. First check that one leads: if anything
            # else subscribes there (monitoring), the server does not answer "no responders".
            if not await self._led_publicly():
                raise
            self._publicly = True
            return await self._bus.request(public, body, timeout_s=timeout_s)
        self._publicly = False
        return answer

    async def _led_publicly(self) -> bool:
        try:
            await self._bus.request(self._names.gang(GangOperation.GET), _ANY_GANG, timeout_s=_PROMPT_S)
        except GanglineError:
            return False
        return True

    async def acquire(
        self, request: AcquireRequest, deadline: float | None, patience_s: float
    ) -> tuple[GangReply, float]:
        """Wait until the gang is formed, across changes of the coordinator. The request has the gang's id and owner
        token.

        Args:
            deadline: loop time; None: wait forever while a coordinator leads, up to `patience_s` after it has gone, and
                not at all if there was none from the start.

        Returns:
            The answer, and when its request was sent.

        Raises:
            GangNotFormed, NoCoordinator: by the deadline.
            GangImpossible, QueueFull: at once.
        """
        loop = asyncio.get_running_loop()
        alone_since: float | None = None
        heard = False
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        # Sending the request again keeps it in the queue, as a renewal does.
        longest_s = min(ASK_AGAIN_S, request.ttl_s / RENEWALS_PER_TTL)
        asking = Backoff(ASK_AGAIN_FIRST_S, longest_s)
        while True:
            asked_at = loop.time()
            left_s = None if deadline is None else deadline - asked_at
            if left_s is not None and left_s <= 0:
                raise _not_formed(request)
            last = left_s is not None and left_s < asking.delay_s + _LAST_ASK_S
            timeout_s = left_s + _LAST_WORD_S if left_s is not None and last else asking.delay_s
            try:
                asked = request
                if left_s != request.deadline_s:
                    asked = request.model_copy(update={"deadline_s": left_s})
                return await self.ask(GangOperation.ACQUIRE, asked, timeout_s), asked_at
            except RequestTimeout:
                alone_since = None
                heard = True
                asking.failures += 1
                continue
            except (NoCoordinator, Disconnected) as error:
                if isinstance(error.__cause__, NoResponders) and deadline is None and not heard:
                    raise
                heard = True
                now = loop.time()
                alone_since = now if alone_since is None else alone_since
                give_up_at = alone_since + patience_s if deadline is None else deadline
                if now >= give_up_at:
                    raise
                await asyncio.sleep(min(backoff.next_s(), max(0.0, give_up_at - now)))
                if loop.time() >= give_up_at:
                    raise error from None

    async def release(self, request: OwnedRequest, grace_s: float) -> None:
        """Release the gang; returns when its members have stopped or the gang has ended. Never fails."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _RELEASE_S
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        asking = Backoff(ASK_AGAIN_FIRST_S, ASK_AGAIN_S)
        while True:
            try:
                await self.ask(GangOperation.RELEASE, request, asking.delay_s)
                return
            except RequestTimeout as error:
                asking.failures += 1
                if loop.time() > give_up_at + grace_s:
                    self._not_released(request, error)
                    return
                continue
            except (GangEnded, UnknownGang, ClosedError):
                return
            except (Unavailable, MalformedMessage) as error:
                if loop.time() + backoff.delay_s > give_up_at:
                    self._not_released(request, error)
                    return
            except GanglineError as error:
                self._not_released(request, error)
                return
            await asyncio.sleep(backoff.next_s())

    def release_unheard(self, request: OwnedRequest) -> None:
        """Release the gang without waiting for an answer. Never fails."""
        body = request.model_dump_json().encode()
        try:
            subject = self._names.gang(GangOperation.RELEASE)
            self._bus.publish(subject if self._publicly else self._names.private(subject), body)
        except (Disconnected, NotPermitted, ClosedError) as error:
            self._not_released(request, error)

    def _not_released(self, request: OwnedRequest, error: GanglineError) -> None:
        _log.warning(
            "gang %s was not released: %s; it ends when its time to live is over",
            request.id,
            error,
            extra={"action": "gang.not_released", "gang": request.id},
        )


def read_event(message: Message) -> GangEvent | None:
    """Parse an event; None, with a warning, if it cannot be read."""
    try:
        return GangEvent.read(message.data)
    except ValidationError as error:
        first = str(error).splitlines()[0]
        _log.warning("unreadable event on %s: %s", message.subject, first, extra={"action": "event.unreadable"})
        return None


def _not_formed(request: AcquireRequest) -> GangNotFormed:
    return GangNotFormed(
        f"gang {request.id} was not formed by its deadline: the coordinator did not answer, or changed just then",
        details={"lacks": []},
    )
