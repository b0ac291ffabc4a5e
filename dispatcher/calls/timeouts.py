"""Deadlines of calls that go the short way. Most calls of a client have the same time, and are answered within it."""

from __future__ import annotations

from typing import Final

from ...runtime.timeouts import Alarms
from .attempts import Caller
from .call import too_late
from .fast_requests import TimedFlight

_MOST: Final = 64
"""Different times that are kept apart at once. More of them are not common, and go the general way."""


class Deadlines:
    """Ends those that were not answered in time; see alarms for what that costs the others."""

    __slots__ = ("_by_time", "_caller")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._by_time: dict[float, Alarms[TimedFlight]] = {}

    def of(self, timeout_s: float) -> Alarms[TimedFlight] | None:
        """Where flights of that time are to be added; None: there are too many different ones."""
        found = self._by_time.get(timeout_s)
        if found is None:
            if len(self._by_time) >= _MOST:
                self._tidy()
            if len(self._by_time) < _MOST:
                found = self._by_time[timeout_s] = Alarms(self._expire)
        return found

    def close(self) -> None:
        """The router stops."""
        for alarms in self._by_time.values():
            alarms.close()
        self._by_time.clear()

    def _tidy(self) -> None:
        for timeout_s, alarms in list(self._by_time.items()):
            if not alarms:
                alarms.close()
                del self._by_time[timeout_s]

    def _expire(self, flight: TimedFlight) -> None:
        if not flight.future.done():
            sent = self._caller.abandon(flight)
            flight.future.set_exception(too_late(flight.target, may_have_started=sent))

    def __repr__(self) -> str:
        return f"Deadlines({sum(map(len, self._by_time.values()))} of {len(self._by_time)} times)"
