"""Rows of the board, from records and answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..schemas.messages.gangs import GangReply, GangWhyReply
from ..schemas.messages.jobs import PURGED, QueueStats
from ..schemas.names import public_id
from ..schemas.records.gangs import GangRecord, GangSetRecord, GangSetStatus, GangState, LeaderAlive, LeaderRecord
from ..schemas.records.jobs import DispatcherEvent
from ..schemas.records.routes import RouteRecord
from ..schemas.records.workers import LeaseRecord, Registration
from ..schemas.text import count_of
from .reasons import gang_sentences
from .slots import WorkerSlots

Row = dict[str, object]


def worker_row(record: Registration, state: str) -> Row:
    return {
        "pool": record.pool,
        "worker": record.worker,
        "state": state,
        "slots": record.slots,
        "epoch": record.epoch,
        "methods": sorted(record.methods),
        "models": list(record.models),
        "node": record.node,
        "zone": record.zone,
        "address": record.address,
        "labels": record.labels,
        "pid": record.pid,
        "version": record.version,
        "started_at": record.started_at,
        "drain_grace_s": record.drain_grace_s,
    }


def pool_row(
    pool: str, slots: Sequence[WorkerSlots], states: Sequence[str], leases: int, calls: int, gangs: int
) -> Row:
    return {
        "pool": pool,
        "workers": len(slots),
        "draining": states.count("draining"),
        "lost": states.count("lost"),
        "total": sum(each.total for each in slots if not each.lost),
        "running": sum(each.running for each in slots),
        "reserved": sum(each.reserved for each in slots),
        "leased": sum(each.leased for each in slots),
        "gang": sum(each.gang for each in slots),
        "kept": sum(each.kept for each in slots),
        "free": sum(each.free for each in slots),
        "leases": leases,
        "waiting_calls": calls,
        "waiting_gangs": gangs,
    }


def lease_row(record: LeaseRecord) -> Row:
    return {
        "id": public_id(record.token),
        "pool": record.pool,
        "worker": record.worker,
        "epoch": record.epoch,
        "slots": record.slots,
        "single_use": record.single_use,
        "owner": record.owner,
        "fence": record.fence,
        "granted_at": record.granted_at,
        "expires_at": record.expires_at,
    }


def gang_row(record: GangRecord, listed: GangReply | None, steps: Sequence[Row]) -> Row:
    """
    Args:
        listed: what the coordinator says of it, if it was asked.
        steps: its events, oldest first.
    """
    spec, state = record.spec, gang_state(record, listed)
    return {
        "id": record.id,
        "state": state.value,
        "step": record.state.value if listed is None else listed.step,
        "ready": record.ready if listed is None else listed.ready,
        "lost": [] if listed is None else list(listed.lost),
        "generation": record.generation,
        "size": spec.size,
        "sizes": list(spec.sizes) if spec.elastic else None,
        "slots": spec.slots,
        "pools": sorted(spec.pools),
        "strategy": spec.strategy.value,
        "restart": spec.restart.value,
        "max_restarts": spec.max_restarts,
        "priority": spec.priority,
        "owner": spec.owner,
        "tenant": record.tenant,
        "gangset": record.gangset,
        "restarts": record.restarts,
        "failures": record.counted,
        "reason": record.reason,
        "rank": record.rank,
        "fence": record.fence,
        "created_at": record.created_at,
        "formed_at": record.formed_at,
        "deadline_at": record.deadline_at,
        "seats": [
            {
                "rank": seat.rank,
                "part": seat.part,
                "pool": seat.pool,
                "worker": seat.worker,
                "slots": seat.slots,
                "node": seat.node,
            }
            for seat in (() if state is GangState.QUEUED else record.seats)
        ],
        "steps": list(steps),
    }


def gang_state(record: GangRecord, listed: GangReply | None) -> GangState:
    """The record of a gang that was torn down is not written again before it forms: only the coordinator says that the
    gang waits."""
    again = listed is not None and listed.state is GangState.QUEUED and record.state is GangState.TEARING_DOWN
    return GangState.QUEUED if again else record.state


def listed_row(gang: GangReply, pools: Iterable[str], steps: Sequence[Row]) -> Row:
    """Of a gang that has never formed, so that only the coordinator knows of it."""
    return {
        "id": gang.id,
        "state": gang.state.value,
        "step": gang.step,
        "generation": gang.generation,
        "size": gang.size,
        "sizes": None if gang.sizes is None else list(gang.sizes),
        "pools": sorted(pools),
        "priority": gang.priority,
        "owner": gang.owner,
        "tenant": gang.tenant,
        "gangset": gang.gangset,
        "restarts": gang.restarts,
        "failures": gang.failures,
        "reason": gang.reason,
        "rank": gang.rank,
        "created_at": gang.created_at,
        "formed_at": gang.formed_at,
        "seats": [],
        "steps": list(steps),
    }


def set_row(name: str, declared: GangSetRecord | None, status: GangSetStatus | None) -> Row:
    row: Row = {"name": name, "declared": None, "status": None}
    if declared is not None:
        spec = declared.gang
        row["declared"] = {
            "gangs": declared.gangs,
            "size": spec.size,
            "slots": spec.slots,
            "pools": sorted(spec.pools),
            "strategy": spec.strategy.value,
            "priority": spec.priority,
            "route": declared.route.value,
        }
    if status is not None:
        row["status"] = {
            "state": status.state.value,
            "reason": status.reason,
            "gangs": status.gangs,
            "formed": status.formed,
            "ready": status.ready,
            "old": status.old,
            "failures": status.failures,
            "last_failure": status.last_failure,
            "stopped": status.stopped,
            "at": status.at,
        }
    return row


def route_row(endpoint: str, route: RouteRecord | str) -> Row:
    if isinstance(route, str):
        return {"endpoint": endpoint, "error": route}
    body: Row = route.model_dump(mode="json", exclude_defaults=True)
    return {"endpoint": endpoint, "error": "", "to": route.pools(endpoint), "route": body}


def leader_row(shard: str, record: LeaderRecord | None, alive: LeaderAlive | None) -> Row | None:
    if record is None and alive is None:
        return None
    return {
        "kind": "leader",
        "id": shard,
        "instance": record.instance if record is not None else "",
        "term": record.term if record is not None else 0,
        "since": record.since if record is not None else 0.0,
        "alive": alive is not None and (record is None or alive.instance == record.instance),
    }


def dispatcher_row(event: DispatcherEvent) -> Row:
    return {"kind": "dispatcher", "id": event.dispatcher, "queues": event.has}


def old_row(what: str, at: float, why: str) -> Row:
    """Gangs or queues are shown as they were at a time, since nobody has answered for them."""
    return {"kind": "old", "id": what, "at": at, "why": why}


# -- what waits, and why ----------------------------------------------------------------------------------------------


def gang_wait(
    gang: GangRecord | GangReply, since: float, pools: Sequence[str], why: GangWhyReply | None, asked_at: float
) -> Row:
    """
    Args:
        since: Unix time at which it began to wait.
        pools: those that are known.
        why: the coordinator's answer, if there is one.
        asked_at: Unix time of it.
    """
    of = gang.spec if isinstance(gang, GangRecord) else gang
    row: Row = {
        "kind": "gang",
        "id": gang.id,
        "owner": of.owner or gang.gangset or "",
        "since": since,
        "priority": of.priority,
        "pools": list(pools),
        "count": of.sizes[0] if of.sizes is not None else of.size,
        "unit": "members",
        "place": None,
        "step": "queued",
        "reasons": [],
        "kept": {},
        "obstacles": [],
        "told": [],
    }
    if why is None:
        return row
    row |= {"place": why.place, "step": why.step, "reasons": list(why.lacks), "target": dict(why.target)}
    row["kept"] = {worker: slots for worker, slots in why.kept.items() if slots}
    row["obstacles"] = [
        {
            "worker": f"{item.pool}.{item.worker}",
            "holder": item.holder,
            "slots": item.slots,
            "owner": item.owner,
            # To a tenth, so that the same end is the same row whenever it was asked for.
            "ends_at": None if item.ends_in_s is None else round(asked_at + item.ends_in_s, 1),
        }
        for item in why.obstacles
    ]
    row["told"] = [sentence.row() for sentence in gang_sentences(why, asked_at)]
    return row


def queue_wait(queue: QueueStats, route: RouteRecord | str | None, slots: tuple[int, int]) -> Row | None:
    """
    Args:
        slots: free slots of the pools of its endpoint, and all of them.
    """
    waiting = queue.depth - queue.running
    if waiting <= 0:
        return None
    free, total = slots
    reasons = []
    if isinstance(route, RouteRecord) and route.queue.paused:
        reasons.append("its route pauses it")
    if queue.unanswered:
        reasons.append(f"its dispatcher does not say: {queue.unanswered}")
    elif not queue.dispatcher:
        reasons.append("no dispatcher runs it: start 'gangline dispatcher'")
    if queue.purged:
        reasons.append(f"{count_of(queue.purged, 'task')}: {PURGED}")
    if queue.waiting:
        reasons.append(f"{count_of(queue.waiting, 'task')} failed and wait for the next attempt")
    if queue.blocked:
        reasons.append(f"{count_of(queue.blocked, 'task')} wait because of a limit or the order of their key")
    if not total:
        reasons.append("no worker serves its pools")
    elif not free and not reasons:
        reasons.append(f"all {count_of(total, 'slot')} of its pools are in use")
    return {
        "kind": "queue",
        "id": queue.endpoint,
        "owner": "",
        "age_s": queue.oldest_s,
        "count": waiting,
        "unit": "tasks",
        "reasons": reasons,
        "running": queue.running,
    }


def calls_wait(pool: str, waiting: Mapping[str, int], slots: tuple[int, int]) -> Row:
    """
    Args:
        waiting: number of requests by client.
        slots: free slots of the pool, and all of them.
    """
    free, total = slots
    reasons = [f"all {count_of(total, 'slot')} of {pool} are in use"] if total and not free else []
    if not total:
        reasons = [f"no worker of {pool} serves"]
    return {
        "kind": "calls",
        "id": pool,
        "owner": ", ".join(sorted(waiting)),
        "count": sum(waiting.values()),
        "unit": "calls",
        "reasons": reasons,
        "by": dict(waiting),
    }


def set_wait(name: str, status: GangSetStatus | None) -> Row | None:
    if status is None or status.state.value == "steady":
        return None
    return {
        "kind": "set",
        "id": name,
        "owner": "",
        "since": status.at,
        "count": max(0, status.gangs - status.ready),
        "unit": "gangs",
        "reasons": [status.reason or status.state.value],
    }
