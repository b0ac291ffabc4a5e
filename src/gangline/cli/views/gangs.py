"""Displays gangs, gang sets and what a gang waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from ...board.reasons import Sentence, gang_sentences
from ...schemas.messages.gangs import GangReply, GangWhyReply
from ...schemas.records.gangs import GangSetRecord, GangSetStatus, GangState
from ...schemas.text import count_of
from ..console.output import Listing, cell_text, duration

_STYLES = {
    "formed": "green",
    "formed, starting": "yellow",
    "queued": "yellow",
    "retiring": "cyan",
    "tearing_down": "red",
    "ended": "dim",
}


def _size(gang: GangReply) -> str:
    return str(gang.size) if gang.sizes is None else f"{gang.size} of {gang.sizes[0]}..{gang.sizes[1]}"


def gangs_table(gangs: Sequence[GangReply]) -> Listing:
    now = time.time()
    lines = [
        (
            gang.id,
            _state(gang),
            _size(gang),
            str(gang.generation),
            str(gang.restarts),
            str(gang.priority),
            " ".join(sorted({f"{seat.pool}.{seat.worker}" for seat in gang.seats})),
            gang.gangset or gang.owner,
            duration(now - gang.created_at) if gang.created_at else "",
            gang.reason,
        )
        for gang in gangs
    ]
    columns = ["GANG", "STATE", "SIZE", "GEN", "RESTARTS", "PRIO", "WORKERS", "OWNER", "AGE", "REASON"]
    if not any(gang.reason for gang in gangs):
        columns.pop()  # leave room for the others: few gangs have been restarted or have ended
    return Listing(
        columns,
        [line[: len(columns)] for line in lines],
        right=("SIZE", "GEN", "RESTARTS", "PRIO", "AGE"),
        whole=("STATE",),
        ids=("GANG",),
        drop=("RESTARTS", "PRIO", "GEN", "AGE", "OWNER", "REASON", "WORKERS"),
    )


def seats_table(gang: GangReply) -> Listing:
    lines = [
        (
            str(seat.rank) if seat.part == 0 else f"{seat.rank}+{seat.part}",
            f"{seat.pool}.{seat.worker}",
            str(seat.slots),
            "/".join(part for part in (seat.zone, seat.node) if part),
            seat.address,
            seat.token,
            str(seat.epoch),
        )
        for seat in gang.seats
    ]
    return Listing(
        ("RANK", "WORKER", "SLOTS", "NODE", "ADDRESS", "TOKEN", "EPOCH"),
        lines,
        right=("RANK", "SLOTS"),
        whole=("WORKER", "TOKEN"),
        drop=("EPOCH", "ADDRESS", "NODE"),
    )


def times_table(report: Mapping[str, Any]) -> Listing:
    """What the tasks of each rank have spent their time on; see board.rank_times."""
    lines = [
        (
            f"{each['rank']}{' slowest' if each['rank'] == report['slowest'] else ''}",
            each["worker"],
            duration(each["busy_s"]),
            duration(each["waiting_s"]),
            duration(each["worked_s"]),
            str(each["ended"]),
            str(each["run"] or ""),
            duration(each["run_worked_s"]) if each["run"] else "",
        )
        for each in report["ranks"]
    ]
    return Listing(
        ("RANK", "WORKER", "BUSY", "WAITING", "WORKED", "ENDED", "RUN", "WORKED IN IT"),
        lines,
        right=("BUSY", "WAITING", "WORKED", "ENDED", "RUN", "WORKED IN IT"),
        whole=("RANK", "WORKER"),
        drop=("ENDED", "RUN", "WORKED IN IT", "BUSY", "WAITING"),
    )


def times_lines(report: Mapping[str, Any], gang: GangReply) -> Iterator[str]:
    """Which rank is the slowest, in sentences."""
    if report["generation"] != gang.generation:
        yield f"these times are of generation {report['generation']}"
    yield from report["told"]


def summary(gang: GangReply) -> str:
    """One gang in a line or two."""
    parts = [f"gang {gang.id} is {_word(gang)}", f"size {_size(gang)}", f"generation {gang.generation}"]
    if gang.fence:
        parts.append(f"fence {gang.fence}")
    if gang.rendezvous is not None:
        host, port = gang.rendezvous.plain
        parts.append(f"rendezvous [{host}]:{port}" if ":" in host else f"rendezvous {host}:{port}")
    if gang.restarts:
        parts.append(f"{count_of(gang.restarts, 'restart')} ({count_of(gang.failures, 'failure')})")
    if gang.lost:
        parts.append(f"rank {', '.join(map(str, gang.lost))} lost and being replaced")
    if gang.reason:
        parts.append(f"last reason: {gang.reason}")
    return ", ".join(parts)


SetRow = tuple[str, GangSetRecord, list[GangReply] | None]
"""A set and its gangs; None: no coordinator could be asked."""


def set_json(row: SetRow) -> dict[str, object]:
    name, record, gangs = row
    living = None if gangs is None else [gang.model_dump(mode="json") for gang in gangs]
    return {"name": name, **record.model_dump(mode="json", exclude={"v"}), "living": living}


def declaration_lines(row: SetRow) -> Iterator[str]:
    """A set as it was declared, as a YAML document."""
    name, record, _ = row
    told = record.model_dump(mode="json", exclude_unset=True, exclude={"v", "previous"})
    yield f"name: {name}"
    for key, value in told.items():
        if key == "gang" and isinstance(value, dict):
            yield "gang:"
            yield from (f"  {inner}: {json.dumps(each)}" for inner, each in value.items())
        else:
            yield f"{key}: {json.dumps(value)}"


def sets_table(sets: Sequence[SetRow]) -> Listing:
    lines = []
    for name, record, gangs in sets:
        formed = "?" if gangs is None else str(sum(gang.state == "formed" for gang in gangs))
        spec = record.gang
        shape = " + ".join(
            f"{bundle.count} x {' + '.join(f'{part.slots} {part.pool}' for part in bundle.parts)}"
            for bundle in spec.bundles
        )
        lines.append((name, f"{formed}/{record.gangs}", str(spec.size), shape, spec.strategy.value, record.route.value))
    return Listing(
        ("SET", "FORMED", "SIZE", "SLOTS", "STRATEGY", "ROUTE"),
        lines,
        right=("FORMED", "SIZE"),
        whole=("SET",),
        drop=("ROUTE", "STRATEGY"),
    )


def status_lines(name: str, record: GangSetRecord, status: GangSetStatus | None, *, led: bool) -> list[str]:
    """The status of a set, in sentences. `led`: whether a coordinator leads."""
    if status is None:
        return [f"{name} is declared, but no coordinator has reported its status"]
    lines = [] if led else ["no coordinator leads: this is what the last one reported"]
    lines += [f"{name} is {status.state.value}" + (f": {status.reason}" if status.reason else "")]
    wanted = f"{count_of(record.gangs, 'gang')} wanted"
    lines.append(f"{wanted}, {status.formed} formed, {status.ready} ready, {status.old} old")
    if status.stopped:
        lines.append(f"'gangline gangset rollback {name}' declares the serving gang; apply the new one again to retry")
    return lines


def why_lines(why: GangWhyReply) -> list[str]:
    """What a gang waits for, in sentences."""
    now = time.time()
    return [sentence_line(sentence, now) for sentence in gang_sentences(why, now)]


def sentence_line(sentence: Sentence, now: float) -> str:
    """One sentence in a line, with its duration at `now`, a Unix time."""
    passed_s = None if sentence.since is None else now - sentence.since
    left_s = passed_s if sentence.until is None else sentence.until - now
    took = "" if left_s is None else f"{duration(left_s)}{sentence.after}"
    return f"{'  ' * sentence.depth}{sentence.text}{took}"


def _state(gang: GangReply) -> Text:
    word = cell_text(_word(gang))
    return Text(word, _STYLES.get(word, _STYLES.get(gang.state.value, "white")))


def _word(gang: GangReply) -> str:
    """Its step; for a formed gang also whether its members have started, if the coordinator says so."""
    if gang.step != GangState.FORMED.value or gang.ready is None:
        return gang.step
    return f"{gang.step}, {'ready' if gang.ready else 'starting'}"
