"""When a waiting gang or job can start, worked out from the board and from what it was told it waits for: the same in
`gangline when`, `gangline top` and the console. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from ..schemas.messages.gangs import GangObstacle, GangWhyReply
from ..schemas.messages.jobs import JobLine, JobTurn, JobWhyReply, LineRunning, LineTask
from ..schemas.names import public_id
from ..schemas.records.gangs import GangRecord, GangState, RestartPolicy
from ..schemas.records.routes import RouteRecord
from ..schemas.records.workers import LEASE_SLACK_S
from ..schemas.text import count_of
from .board_core import Board
from .forecast_core import (
    Durations,
    Forecast,
    SlotHolder,
    TaskAhead,
    TaskRunning,
    WaitingLine,
    forecast,
    forecast_job,
)
from .reasons import Sentence, place_text
from .slots import Cells, state_of

_MOST_NAMED = 3
_NO_START = frozenset({"no_workers", "slots"})
"""Obstacles whose `until` is no moment before which a job cannot start: it becomes a dead letter then, or another task
must have ended by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """When something can start, and what that depends on."""

    told: Mapping[str, object]
    """For JSON."""
    sentences: tuple[Sentence, ...]

    def row(self) -> dict[str, object]:
        return {**self.told, "told": [sentence.row() for sentence in self.sentences]}


# -- gangs ------------------------------------------------------------------------------------------------------------


def gang_outlook(board: Board, why: GangWhyReply, durations: Durations, now: float) -> Outlook:
    """
    Args:
        why: what the coordinator has just answered.
        now: Unix time.
    """
    if why.step == GangState.FORMED.value:
        return Outlook(told={"step": why.step}, sentences=(Sentence(text=f"gang {why.id} is formed"),))
    pools = {worker.partition(".")[0] for worker in why.target} or board.pools_of(why.id)
    drains = list(_drains(board, pools, now))
    if why.place is None or not why.target:
        lacks = why.lacks or ("it does not wait for slots",)
        sentences = [
            Sentence(text=f"gang {why.id} is {why.step}"),
            *(Sentence(text=f"unknown: {lack}") for lack in lacks),
            *(drains if why.place is not None else ()),
        ]
        return Outlook(told={"step": why.step, "unknown": list(lacks)}, sentences=tuple(sentences))
    holders = [_holder_of(board, why, each, now) for each in why.obstacles]
    found = forecast(_missing(board, why), holders, durations, is_head=why.place == 0)
    told = {
        "step": why.step,
        "place": why.place,
        **_moments(found, first=why.place == 0),
    }
    return Outlook(told=told, sentences=(*_gang_sentences(why, found, now), *drains))


def _gang_sentences(why: GangWhyReply, found: Forecast, now: float) -> Iterator[Sentence]:
    place = "the head of the queue" if why.place == 0 else place_text(why.place or 0)
    yield Sentence(text=f"gang {why.id} is {why.step}, {place}")
    after = ": gangs ahead of it take the slots first" if why.place else None
    yield from _forecast_sentences(found, now, others=after, bound_if="if nobody renews")
    yield from (Sentence(text=f"behind gang {other.id}: priority {other.priority}", depth=1) for other in why.ahead)


def _holder_of(board: Board, why: GangWhyReply, item: GangObstacle, now: float) -> SlotHolder:
    worker, name, ends_in_s = f"{item.pool}.{item.worker}", item.holder, item.ends_in_s
    kind, _, id = item.holder.partition(" ")
    if kind == "gang" and (drained := _drained(board, why.id, id)) is not None:
        name, ends_in_s = f"{item.holder} (on {drained[0]}, which drains)", max(0.0, drained[1] - now)
    elif kind == "lease" and ends_in_s is not None:
        ends_in_s += LEASE_SLACK_S
    return SlotHolder(
        worker=worker,
        name=f"{name} ({item.owner})" if item.owner else name,
        slots=item.slots,
        ends_in_s=ends_in_s,
        kind=f"lease of {item.owner}" if kind == "lease" else kind,
        age_s=_age_s(board, kind, id, now),
    )


def _age_s(board: Board, kind: str, id: str, now: float) -> float | None:
    if kind == "lease":
        lease = board.lease(id)
        return None if lease is None else max(0.0, now - lease.granted_at)
    gang = board.gangs.get(id)
    return None if gang is None or not gang.formed_at else max(0.0, now - gang.formed_at)


def _drained(board: Board, waiting: str, holder: str) -> tuple[str, float] | None:
    """The draining worker that ends a gang on all its workers, and when at the latest (Unix time); None: nothing does
    before it frees its slots for the waiting gang. One that is queued again before the waiting gang would take the
    slots back."""
    gang, other = board.gangs.get(holder), board.known_gang(waiting)
    if gang is None or other is None or gang.spec.restart is RestartPolicy.RESTART_MEMBER:
        return None
    behind = gang.spec.priority < (other.spec.priority if isinstance(other, GangRecord) else other.priority)
    if not behind and gang.spec.restart is not RestartPolicy.FAIL:
        return None
    ends = [
        (registration.drain_by + gang.spec.grace_s, f"{seat.pool}.{seat.worker}")
        for seat in gang.seats
        if (registration := board.registration(f"{seat.pool}.{seat.worker}")) is not None
        and registration.epoch == seat.epoch
        and registration.drain_by is not None
    ]
    return min(((worker, at) for at, worker in ends), key=lambda each: each[1], default=None)


def _missing(board: Board, why: GangWhyReply) -> dict[str, int]:
    """Slots of the target that are neither free nor kept for it."""
    used: dict[str, int] = {}
    for each in why.obstacles:
        name = f"{each.pool}.{each.worker}"
        used[name] = used.get(name, 0) + each.slots
    # What is kept for it counts as neither: it is not among the obstacles.
    totals = {name: slots.total for name, slots in board.slots.items()}
    return {name: max(0, slots - max(0, totals.get(name, 0) - used.get(name, 0))) for name, slots in why.target.items()}


def _drains(board: Board, pools: Set[str], now: float) -> Iterator[Sentence]:
    """Workers whose slots do not come back."""
    for name in sorted(name for name in board.workers if name.partition(".")[0] in pools):
        registration = board.registration(name)
        if registration is not None and registration.state == "draining":
            slots = "slot does" if registration.slots == 1 else f"{registration.slots} slots do"
            text = f"{name} drains: its {slots} not come back"
            if registration.drain_by is None:
                yield Sentence(text=text, depth=1)
            else:
                yield Sentence(text=f"{text}, and it is gone in ", until=max(now, registration.drain_by), depth=1)


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_outlook(board: Board, why: JobWhyReply, durations: Durations, now: float) -> Outlook:
    """As `gang_outlook`. What is known only of time (a delay, a backoff, a rate) is a moment before which it cannot
    start."""
    info = why.job
    known = [each for each in why.obstacles if each.until is not None and each.kind not in _NO_START]
    paused = any(each.kind == "paused" for each in why.obstacles)
    waits_for_slots = why.line is not None and not paused
    waits_for_turn = why.turn is not None and not paused
    kinds = {"slots", "position", "pool_limit"} if waits_for_slots else set[str]()
    if waits_for_turn:
        kinds |= {"key", "method", "order"}
    open_ends = [each.text.rstrip(".") for each in why.obstacles if each not in known and each.kind not in kinds]
    not_before = max((obstacle.until for obstacle in known if obstacle.until is not None), default=None)
    sentences = [Sentence(text=f"{info.title} ({info.endpoint}.{info.method}) is {info.state.value}")]
    if not_before is not None:
        sentences.append(Sentence(text="not before ", until=max(now, not_before), after=" from now"))
        for each in known:
            sentences.append(Sentence(text=f"{each.text.rstrip('.')}, for ", until=each.until, depth=1))
    told: dict[str, object] = {
        "state": info.state.value,
        "not_before_s": None if not_before is None else round(max(0.0, not_before - now), 3),
        "unknown": open_ends,
    }
    if why.line is not None and waits_for_slots:
        more, told_of_line = _of_line(board, info.endpoint, why.line, durations, now, not_before or now)
        # Without a worker that serves there is nothing to estimate, and the obstacle says so.
        no_workers = any(each.kind == "no_workers" for each in why.obstacles)
        sentences += _drains(board, {why.line.pool}, now) if no_workers else more
        if no_workers:
            told_of_line |= _moments(Forecast(estimate_s=None, steps=(), unknown=()), first=True)
        told |= told_of_line
        told["unknown"] = open_ends + [name for name in _texts(told_of_line["unknown"]) if name not in open_ends]
    if why.turn is not None and waits_for_turn:
        more, told_of_turn = _of_turn(board, why, why.turn, durations, now)
        sentences += more
        told |= told_of_turn
        told["unknown"] = open_ends + _texts(told_of_turn["unknown"])
    sentences += [
        Sentence(text=f"then unknown: {text}" if known else f"unknown: {text}", depth=1 if known else 0)
        for text in open_ends
    ]
    if not why.obstacles and why.line is None:
        sentences.append(Sentence(text="nothing stands in its way" if why.position is not None else "it does not wait"))
    return Outlook(told=told, sentences=tuple(sentences))


def _of_turn(
    board: Board, why: JobWhyReply, turn: JobTurn, durations: Durations, now: float
) -> tuple[list[Sentence], dict[str, object]]:
    """The start is estimated as its turn, or when it would have slots, whichever is later. Only the turn has a bound:
    while it waits, tasks behind it take slots."""
    endpoint, line = why.job.endpoint, turn.line
    come_back = turn.kind == "order" and not all(task.once for task in turn.running)  # it waits through their backoffs
    in_turn = forecast_job(
        WaitingLine(
            ahead=[replace(task, slots=1) for task in _ahead(endpoint, turn.ahead, now)],
            running=[replace(task, slots=1) for task in _running(endpoint, turn.running, line.pool, now)],
            leased=turn.most_running,
            only_slots=not turn.ahead and not come_back,
            alone=not turn.turns,
        ),
        durations,
    )
    others = list(_others(board, endpoint, line))
    for_slots = forecast_job(_line_of(board, endpoint, line, alone=False, now=now), durations)
    estimates = in_turn.estimate_s, for_slots.estimate_s
    estimate_s = None if None in estimates else max(each for each in estimates if each is not None)
    slots_later = (for_slots.estimate_s or 0.0) > (in_turn.estimate_s or 0.0)
    found = Forecast(
        estimate_s=estimate_s,
        steps=in_turn.steps
        + (tuple(step for step in for_slots.steps if step not in in_turn.steps) if slots_later else ()),
        unknown=tuple(dict.fromkeys((*in_turn.unknown, *for_slots.unknown))),
    )
    after = None
    if others or turn.turns:
        after = f": {', '.join(others[:_MOST_NAMED]) or 'tasks of other tenants'} may go first"
    elif not turn.last:
        after = ": another limit follows"
    sentences = list(_forecast_sentences(found, now, others=after, bound_if=""))
    if in_turn.bound_s is not None:
        if_kept = " from now, if no task takes longer than it may"
        sentences.append(Sentence(text="its turn comes no later than ", until=now + in_turn.bound_s, after=if_kept))
    for each in why.obstacles:
        if each.kind == turn.kind:
            sentences.append(Sentence(text=each.text.rstrip("."), depth=1))
    ahead = sum(task.count for task in turn.ahead)
    if ahead:
        sentences.append(Sentence(text=f"{count_of(ahead, 'task')} before it in this", depth=1))
    sentences += _drains(board, {line.pool}, now)
    told_of_turn = {
        "kind": turn.kind,
        "ahead": ahead,
        "no_later_than_s": _rounded(in_turn.bound_s),
        "about_s": _rounded(in_turn.estimate_s),
    }
    moments = _moments(found, first=after is None)
    return sentences, {"pool": line.pool, "others": others, "turn": told_of_turn, **moments}


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _of_line(
    board: Board, endpoint: str, line: JobLine, durations: Durations, now: float, not_before: float
) -> tuple[list[Sentence], dict[str, object]]:
    others = list(_others(board, endpoint, line))
    found = forecast_job(_line_of(board, endpoint, line, alone=not others, now=now), durations)
    if found.estimate_s is not None:
        found = replace(found, estimate_s=max(found.estimate_s, not_before - now))
    after = (
        f": {', '.join(others[:_MOST_NAMED])} {'wait' if len(others) > 1 or line.turns else 'waits'} for the same slots"
    )
    ahead = sum(task.count for task in line.ahead)
    sentences = list(
        _forecast_sentences(
            found,
            now,
            others=after if others else None,
            bound_if="if no task takes longer than it may, and nobody else takes the slots",
        )
    )
    if ahead:
        many: dict[str, int] = {}
        for task in line.ahead:
            many[task.method] = many.get(task.method, 0) + task.count
        of = ", ".join(f"{count} of {endpoint}.{method}" for method, count in list(many.items())[:_MOST_NAMED])
        text = f"{count_of(ahead, 'task')} before it for the slots of {line.pool}: {of}"
        sentences.append(Sentence(text=text + (" and others" if len(many) > _MOST_NAMED else ""), depth=1))
    sentences += _drains(board, {line.pool}, now)
    told = {"pool": line.pool, "ahead": ahead, "others": others, **_moments(found, first=not others)}
    return sentences, told


def _line_of(board: Board, endpoint: str, line: JobLine, *, alone: bool, now: float) -> WaitingLine:
    free, holders = slots_in_use(board, line, now)
    return WaitingLine(
        slots=line.slots,
        ahead=list(_ahead(endpoint, line.ahead, now)),
        running=[
            replace(task, leaves_in_s=_leaves_in_s(board, task.worker, now))
            for task in _running(endpoint, line.running, line.pool, now)
        ],
        leased=sum(lease.slots for lease in line.leases if _leaves_in_s(board, lease.worker, now) is None),
        holders=[holder for holder in holders if holder.kind],
        free=sum(free.values()),
        most_running=line.most_running,
        only_slots=line.only_slots,
        alone=alone,
    )


def slots_in_use(board: Board, line: JobLine, now: float) -> tuple[dict[str, int], list[SlotHolder]]:
    """Of the workers that can run a job: their free slots, and who has the others besides the job's queue. Holders
    without a kind are not waited for: calls, and what is kept for a gang."""
    own = {lease.lease for lease in line.leases}
    free: dict[str, int] = {}
    holders: list[SlotHolder] = []
    for name, slots in board.slots.items():
        registration = board.registration(name)
        if registration is None or registration.pool != line.pool or slots.lost or registration.state == "draining":
            continue
        if line.method not in registration.methods:
            continue
        # The board may not show leases yet that the dispatcher has: their slots are not free.
        shown = {cells.holder for cells in slots.cells}
        unseen = (lease for lease in line.leases if lease.worker == name and lease.lease not in shown)
        free[name] = max(0, slots.free - sum(lease.slots for lease in unseen))
        holders += [_holder_of_cells(board, name, cells, now) for cells in slots.cells if cells.holder not in own]
    return free, [holder for holder in holders if holder.name]


def _holder_of_cells(board: Board, worker: str, cells: Cells, now: float) -> SlotHolder:
    """Without a name: nobody has them."""
    lease = board.lease(cells.holder)
    if cells.kind == "lease" and lease is not None:
        return SlotHolder(
            worker=worker,
            name=f"lease {public_id(lease.token)}{f' ({lease.owner})' if lease.owner else ''}",
            slots=cells.slots,
            ends_in_s=max(0.0, lease.expires_at - now) + LEASE_SLACK_S,
            kind=f"lease of {lease.owner}",
            age_s=max(0.0, now - lease.granted_at),
        )
    if cells.kind == "gang":
        age_s = _age_s(board, "gang", cells.holder, now)
        return SlotHolder(worker=worker, name=f"gang {cells.holder}", slots=cells.slots, kind="gang", age_s=age_s)
    names = {"kept": f"kept for gang {cells.holder}, which waits for more", "task": "calls"}
    return SlotHolder(worker=worker, name=names.get(cells.kind, ""), slots=cells.slots)


def _ahead(endpoint: str, tasks: Iterable[LineTask], now: float) -> Iterator[TaskAhead]:
    for task in tasks:
        yield TaskAhead(
            kind=task_kind(endpoint, task.method),
            count=task.count,
            slots=task.slots,
            at_most_s=task.at_most_s,
            not_before_s=0.0 if task.not_before is None else max(0.0, task.not_before - now),
            once=task.once,
        )


def _running(endpoint: str, tasks: Iterable[LineRunning], pool: str, now: float) -> Iterator[TaskRunning]:
    for task in tasks:
        yield TaskRunning(
            worker=task.worker or pool,
            name=f"{endpoint}.{task.method}",
            kind=task_kind(endpoint, task.method),
            slots=task.slots,
            age_s=None if task.started_at is None else max(0.0, now - task.started_at),
            at_most_s=task.at_most_s,
            once=task.once,
        )


def task_kind(endpoint: str, method: str) -> str:
    """The kind of a task, for `Durations`."""
    return f"task {endpoint}.{method}"


def _leaves_in_s(board: Board, worker: str, now: float) -> float | None:
    """While it drains: how long it stays at most. None: it does not drain."""
    entries = board.workers.get(worker)
    registration = None if entries is None else entries.registration
    if entries is None or registration is None:
        return None
    if state_of(registration, entries.heartbeat) != "draining":
        return None
    return float("inf") if registration.drain_by is None else max(0.0, registration.drain_by - now)


def _others(board: Board, endpoint: str, line: JobLine) -> Iterator[str]:
    """Who else waits for slots of the pool."""
    pool = line.pool
    for gang in board.queued:
        if pool in board.pools_of(gang):
            yield f"gang {gang}"
    for other, queue in sorted(board.queues.items()):
        if other != endpoint and queue.depth > queue.running:
            record = board.routes.get(other)
            route = record if isinstance(record, RouteRecord) else RouteRecord()
            if pool in route.pools(other) and not route.queue.paused:
                yield f"queue {other}"
    if line.turns:
        yield "tasks of other tenants"
    if clients := board.calls_wait(pool, besides=line.router):
        yield f"a call of {min(clients)}"


# -- both -------------------------------------------------------------------------------------------------------------


def _moments(found: Forecast, *, first: bool) -> dict[str, object]:
    """
    Args:
        first: whether nobody takes the slots before it.
    """
    return {
        "no_later_than_s": _rounded(found.bound_s),
        "about_s": _rounded(found.estimate_s) if first else None,
        "not_before_about_s": None if first else _rounded(found.estimate_s),
        "because": [
            {"worker": step.worker, "holder": step.holder, "in_s": _rounded(step.in_s), "estimated": step.estimated}
            for step in found.steps
        ],
        "unknown": list(found.unknown),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _forecast_sentences(found: Forecast, now: float, *, others: str | None, bound_if: str) -> Iterator[Sentence]:
    """
    Args:
        others: who takes the slots first; None: nobody.
        bound_if: on what the bound depends.
    """
    if others is not None and found.estimate_s is not None:
        yield Sentence(text="not before about ", until=now + found.estimate_s, after=f" from now{others}")
    elif found.estimate_s is not None and (found.bound_s is None or any(step.estimated for step in found.steps)):
        yield Sentence(text="about ", until=now + found.estimate_s, after=" from now (estimated)")
    if found.bound_s is not None:
        yield Sentence(text="no later than ", until=now + found.bound_s, after=f" from now, {bound_if}")
    if found.bound_s is None and found.estimate_s is None:
        yield Sentence(text="unknown: these have no known end, and too few like them have ended")
        yield from (Sentence(text=name, depth=1) for name in found.unknown)
    for step in found.steps:
        how = "is expected to end" if step.estimated else "ends"
        yield Sentence(text=f"{step.worker}: {step.holder} {how} in ", until=now + step.in_s, depth=1)
