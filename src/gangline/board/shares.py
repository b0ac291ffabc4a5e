"""What a submitted task waits for, with the shares of limits that workers divide: dispatchers do not know them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..schemas.errors.base import GanglineError
from ..schemas.messages.jobs import JobObstacle, JobWhyReply
from ..schemas.names import rate_of
from ..schemas.records.workers import LimitRecord
from ..schemas.text import count_of, plain

if TYPE_CHECKING:
    from ..dispatcher.client.client import Client
    from ..dispatcher.jobs.job import Job

_REFUSED = "lease_busy"
"""The worker that it was sent to had no share."""


async def why_job(client: Client, job: Job[object]) -> JobWhyReply:
    """As `job.why()`, and who has the units of the limits that hold it back. Without them if the ledger cannot be read.

    Raises:
        UnknownJob: there is no such job.
    """
    from ..dispatcher.client.operations import shared_limits

    why = await job.why()
    pool = limited_in(why)
    if not pool:
        return why
    try:
        limits = await shared_limits(await client.router.ledger(), client.router.names, pool)
    except GanglineError:
        return why
    records = (limits.get((pool, name)) for name in (why.job.method, rate_of(why.job.method)))
    shares = [share_obstacle(pool, why.job.method, record) for record in records if record is not None]
    return why.model_copy(update={"obstacles": (*why.obstacles, *shares)})


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
    limit = f"{record.limit} may run at once" if rate is None else f"{plain(rate)} may start per second"
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
