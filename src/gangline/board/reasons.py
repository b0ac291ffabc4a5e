"""What gangs and jobs wait for, in sentences: the same in `gangline why`, `gangline top` and the console. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..schemas.messages.gangs import GangObstacle, GangWhyReply
from ..schemas.messages.jobs import JobWhyReply
from ..schemas.text import count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Text, then a duration if there is one, then `after`. Each display writes the duration in its own way."""

    text: str
    until: float | None = None
    """Unix time: the duration is the time left."""
    since: float | None = None
    """Unix time: the duration is the time passed."""
    after: str = ""
    depth: int = 0
    """How far it is indented."""

    def row(self) -> dict[str, object]:
        told: dict[str, object] = {"text": self.text, "depth": self.depth}
        if self.until is not None or self.since is not None:
            told |= {"until": self.until, "since": self.since, "after": self.after}
        return told


def gang_sentences(why: GangWhyReply, asked_at: float) -> Iterator[Sentence]:
    """
    Args:
        asked_at: Unix time of the answer. Times are rounded to a tenth of a second, so that the same end is the same
            sentence whenever it was asked for.
    """
    place = "" if why.place is None else f", {place_text(why.place)}"
    yield Sentence(text=f"gang {why.id} is {why.step}{place}")
    for lack in why.lacks:
        yield Sentence(text=lack, depth=1)
    for other in why.ahead:
        who = f" ({other.owner})" if other.owner else ""
        text = f"behind gang {other.id}{who}: priority {other.priority}, size {other.size}, waits for "
        yield Sentence(text=text, since=round(asked_at - other.waiting_s, 1), depth=1)
    if why.ahead and why.place is not None and why.place > len(why.ahead):
        yield Sentence(text=f"and behind {why.place - len(why.ahead)} more", depth=1)
    for worker, slots in why.target.items():
        kept = why.kept.get(worker, 0)
        already = f", {kept} kept for it already" if kept else ""
        yield Sentence(text=f"{worker}: {count_of(slots, 'slot')} wanted{already}")
        yield from (_holder(item, asked_at) for item in why.obstacles if f"{item.pool}.{item.worker}" == worker)


def place_text(place: int) -> str:
    """`number 1 in the queue`; places count from 0."""
    return f"number {place + 1} in the queue"


def _holder(item: GangObstacle, asked_at: float) -> Sentence:
    who = f"{item.holder} ({item.owner})" if item.owner else item.holder
    text = f"{who} {'have' if item.holder == 'tasks' else 'has'} {count_of(item.slots, 'slot')}"
    if item.ends_in_s is None:
        return Sentence(text=text, depth=1)
    until = round(asked_at + item.ends_in_s, 1)
    return Sentence(text=f"{text}, ends in ", until=until, after=" if not renewed", depth=1)


def job_sentences(why: JobWhyReply) -> Iterator[Sentence]:
    """The first says what it is, the others what it waits for."""
    info = why.job
    where = f" on {info.worker}" if info.worker and info.state.value == "running" else ""
    yield Sentence(text=f"{info.title} ({info.endpoint}.{info.method}) is {info.state.value}{where}")
    if why.impaired:
        yield Sentence(text=f"its dispatcher is impaired, so that tasks may be unable to end: {why.impaired}", depth=1)
    if why.position == 0:
        yield Sentence(text="it is next")
    elif why.position is not None:
        are = "is" if why.position == 1 else "are"
        yield Sentence(text=f"{count_of(why.position, 'job')} in its queue {are} ahead of it")
    for obstacle in why.obstacles:
        who = f" ({', '.join(obstacle.jobs)})" if obstacle.jobs else ""
        ends = "" if obstacle.until is None else ", until "
        yield Sentence(text=f"{obstacle.text.rstrip('.')}{who}{ends}", until=obstacle.until, depth=1)
