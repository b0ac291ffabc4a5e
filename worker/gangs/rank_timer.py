"""How long the tasks of a gang's ranks run here, and how much of that they wait for other ranks."""

from __future__ import annotations

from collections.abc import Callable

from ...schemas.messages.operations import RankTimes


class _Meter:
    """Adds up the time of things that go on, several at once each for itself."""

    __slots__ = ("_at", "_going", "_total_s")

    def __init__(self) -> None:
        self._going = 0
        self._at = 0.0
        self._total_s = 0.0

    def change(self, by: int, now: float) -> None:
        self._total_s = self.seconds(now)
        self._at = now
        self._going += by

    def seconds(self, now: float) -> float:
        return self._total_s + self._going * (now - self._at)

    def restart(self, now: float) -> None:
        """Count what goes on from now."""
        self._at = now
        self._total_s = 0.0


class RankTimer:
    """Measures one rank on this worker. Times are those of the event loop."""

    __slots__ = ("_busy", "_ended", "_run", "_run_busy", "_run_waiting", "_waiting", "rank", "waited")

    def __init__(self, rank: int, waited: Callable[[float], None]) -> None:
        """`waited`: called with the duration of each wait for other ranks."""
        self.rank = rank
        self.waited = waited
        self._ended = 0
        self._busy, self._waiting = _Meter(), _Meter()
        self._run = 0
        self._run_busy, self._run_waiting = _Meter(), _Meter()

    def began(self, run: int, now: float) -> None:
        """A task begins, as part of this run of the owner; 0: of none."""
        if run > self._run:
            self._run = run
            self._run_busy, self._run_waiting = _Meter(), _Meter()
        self._busy.change(1, now)
        if run and run == self._run:
            self._run_busy.change(1, now)

    def ended(self, run: int, now: float) -> None:
        """That task has ended."""
        self._ended += 1
        self._busy.change(-1, now)
        if run and run == self._run:
            self._run_busy.change(-1, now)

    def waits(self, run: int, by: int, now: float) -> None:
        """A task begins (1) or ends (-1) to wait for other ranks."""
        self._waiting.change(by, now)
        if run and run == self._run:
            self._run_waiting.change(by, now)

    def restart(self, now: float) -> None:
        """A new generation begins, and the rank continues in it."""
        self._ended = 0
        for meter in (self._busy, self._waiting, self._run_busy, self._run_waiting):
            meter.restart(now)

    def times(self, now: float) -> RankTimes:
        """Until now."""
        return RankTimes(
            rank=self.rank,
            busy_s=round(self._busy.seconds(now), 3),
            waiting_s=round(self._waiting.seconds(now), 3),
            ended=self._ended,
            run=self._run,
            run_busy_s=round(self._run_busy.seconds(now), 3),
            run_waiting_s=round(self._run_waiting.seconds(now), 3),
        )

    def __repr__(self) -> str:
        return f"<RankTimer of rank {self.rank}>"
