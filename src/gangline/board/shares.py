"""What a submitted task waits for, with what dispatchers do not know: who has the slots of its pool, and how workers
divide limits among them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..schemas.errors.base import GanglineError
from ..schemas.messages.jobs import JobLine, JobObstacle, JobWhyReply
from ..schemas.names import rate_of
from ..schemas.records.workers import LimitRecord
from ..schemas.text import count_of, rate_in_words
from .board_core import Board
from .feed import MOST_ASKED, ask_gangs, ask_why
from .outlook import slots_in_use

if TYPE_CHECKING:
    from ..dispatcher.client.client import Client
    from ..dispatcher.jobs.job import Job

_REFUSED = "lease_busy"
"""The worker that it was sent to had no share."""
_MOST_HOLDERS: Final = 8


async def why_job(client: Client, job: Job[object], board: Board | None = None) -> JobWhyReply:
    """As `job.why()`, and who has the slots of its pool, or the units of the limits that hold it back. Without them if
    the ledger cannot be read.

    Args:
        board: of the whole system; None: the ledger is read.

    Raises:
        UnknownJob: there is no such job.
    """
    from ..dispatcher.client.operations import shared_limits

    why = await job.why()
    more: list[JobObstacle] = []
    try:
        if why.line is not None and not any(each.kind in ("paused", "no_workers") for each in why.obstacles):
            board = board or await _board_of(client, why.line.pool)
            more += slot_obstacles(board, why.line, time.time())
        if pool := limited_in(why):
            limits = await shared_limits(await client.router.ledger(), client.router.names, pool)
            records = (limits.get((pool, name)) for name in (why.job.method, rate_of(why.job.method)))
            more += [share_obstacle(pool, why.job.method, record) for record in records if record is not None]
    except GanglineError:
        pass
    return why.model_copy(update={"obstacles": (*why.obstacles, *more)})


async def _board_of(client: Client, pool: str) -> Board:
    """The workers of a pool, and who has their slots. One pattern after the other: the server notes each that a user
    may not read, such as a tenant."""
    names, ledger = client.router.names, await client.router.ledger()
    board = Board(names.namespace)
    for keys in (names.registrations_of, names.alive_of, names.leases_of, names.members_of):
        for entry in await ledger.entries(keys(pool)):
            board.see_entry(entry.key, entry.value)
    board.take()
    if any(cells.kind == "reserved" for slots in board.slots.values() for cells in slots.cells):
        with contextlib.suppress(GanglineError):  # no coordinator runs, or this user may not ask
            await _ask_what_is_kept(client, board)
    return board


async def _ask_what_is_kept(client: Client, board: Board) -> None:
    """What is reserved may be kept for a gang, which its coordinator knows."""
    await ask_gangs(client, board)
    for gang in board.queued[:MOST_ASKED]:
        await ask_why(client, board, gang)
    board.take()


def slot_obstacles(board: Board, line: JobLine, now: float) -> Iterator[JobObstacle]:
    """Who has the slots that a job in line waits for, first those that end first; nothing if a worker has enough."""
    free, holders = slots_in_use(board, line, now)
    if max(free.values(), default=0) >= line.slots:
        return
    holders.sort(key=lambda each: (each.ends_in_s is None, each.ends_in_s or 0.0, each.worker, each.name))
    for holder in holders[:_MOST_HOLDERS]:
        text = f"{count_of(holder.slots, 'slot')} of {holder.worker}: {holder.name}"
        if holder.ends_in_s is None:
            yield JobObstacle(kind="slots", text=text)
        else:
            yield JobObstacle(kind="slots", text=f"{text}, if it is not renewed", until=now + holder.ends_in_s)
    if more := holders[_MOST_HOLDERS:]:
        yield JobObstacle(kind="slots", text=f"{count_of(sum(each.slots for each in more), 'slot')}: others")


def limited_in(why: JobWhyReply) -> str:
    """The pool in which a limit that workers divide may hold it back; "": none does."""
    if why.position is None:
        return ""
    error = why.job.error
    if error is not None and error.code == _REFUSED:
        return str(error.details.get("worker", why.job.worker)).partition(".")[0]
    if why.turn is not None and why.turn.kind == "method":
        return why.turn.line.pool
    return ""


def share_obstacle(pool: str, method: str, record: LimitRecord) -> JobObstacle:
    """Which limit it is, who has its units, and who asks for one."""
    rate = record.rate_per_s
    limit = f"{record.limit} may run at once" if rate is None else "{} may start per {}".format(*rate_in_words(rate))
    told = "; ".join(_shares(record))
    return JobObstacle(
        kind="method" if rate is None else "rate",
        text=f"{pool}.{method} declares that at most {limit}, over all workers and with calls: "
        f"of {count_of(record.limit, 'unit')}, {told}.",
    )


def _shares(record: LimitRecord) -> Iterator[str]:
    units = {name: share.units for name, share in record.shares.items() if share.units}
    yield ", ".join(f"{name} has {count}" for name, count in units.items()) or "nobody has any"
    free = record.limit - sum(units.values())
    if free > 0:
        yield f"{free} are free" if free > 1 else "1 is free"
    if record.waiting:
        yield f"{', '.join(record.waiting)} {'waits' if len(record.waiting) == 1 else 'wait'} for one"
