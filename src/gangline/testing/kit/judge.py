"""Checks a recorded history against the laws. It knows nothing of servers or processes: a history in, verdicts out.

A breach is excused only by what docs/explanation/what-is-not-promised.md says:

- tasks that were running on a process when it was frozen or cut off may continue beside its successor, and a process
  that is cut off from storage keeps serving;
- a durable task may start elsewhere when the process that runs it is killed, frozen or cut off;
- nobody waits for members on a worker that is killed, frozen or cut off;
- requests of a killed client have no answer, and a frozen client reads its clock when it wakes;
- deadlines are sent as remaining time, so a message that a link delayed may start a task late by that delay;
- the ledger is only up to date while storage accepts writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from .records import NEVER, HeldGrant, Life, Run, SentRequest, ShownToken, SystemHistory, Trouble

K = TypeVar("K")
T = TypeVar("T")

SLACK_S: Final = 3.0
"""How late an answer may be on a busy machine."""
DRAIN_GRACE_S: Final = 10.0
"""How long a task may keep running on a draining worker."""
_TURN_S: Final = 0.5
"""From a worker's decision until the task itself records it."""
_ROUNDED_S: Final = 2.0
"""The server expires keys in whole seconds, and the writer rounds up."""
_SETTLES_S: Final = 10.0
"""After storage or its reader was away, writes and reads may be late for this long: a timeout of 5 s, and retries."""
_REACHES_STORAGE_S: Final = 5.0
"""After it was cut off, a process may need this long to reach storage again: a hanging connection attempt, and a
pause."""


class Judge:
    """One history, with indexes for frequent lookups."""

    def __init__(self, history: SystemHistory) -> None:
        self.history = history
        self.lives: dict[int, Life] = {life.pid: life for life in history.lives}
        self.runs_of: dict[str, list[Run]] = defaultdict(list)
        self.runs = sorted(history.runs, key=lambda run: run.began)
        for run in self.runs:
            self.runs_of[run.id].append(run)
        self.requests = {request.id: request for request in history.requests}

    def ended(self, run: Run) -> float:
        """When it was over: as recorded, or because its process ended."""
        return min(run.ended, self._life_end(run.pid))

    def _life_end(self, pid: int) -> float:
        life = self.lives.get(pid)
        return NEVER if life is None else life.ended

    def lost(self, pid: int, since: float, until: float) -> bool:
        """Whether that process was killed, frozen or cut off in that interval."""
        life = self.lives.get(pid)
        if life is not None and life.killed and since <= life.ended <= until:
            return True
        return any(
            trouble.pid == pid and trouble.since <= until and since <= _over_at(trouble)
            for trouble in self.history.troubles
        )  # fmt: skip

    # -- L1, L3 ---------------------------------------------------------------------------------------------------

    def capacity(self) -> Iterable[str]:
        """L1: no more tasks run at once than there are slots, in a process and over all processes of a worker's id."""
        for pid, runs in _by(self.runs, lambda run: run.pid).items():
            for run, slots in self._at_each_start(runs, lambda _, __: True):
                if slots > self.history.slots:
                    yield f"{slots} slots of {run.worker} (process {pid}) were in use when {run.id} began"
                    break
        for worker, runs in _by(self.runs, lambda run: run.worker).items():
            if len({run.pid for run in runs}) < 2:
                continue
            for run, slots in self._at_each_start(runs, self._counts_beside):
                if slots > self.history.slots:
                    yield f"{slots} slots of {worker} (all its processes) were in use when {run.id} began"

    def _counts_beside(self, run: Run, began: Run) -> bool:
        """Whether `run` counts as using slots when `began` begins.

        Not if its process was lost while it ran. And a process that is cut off keeps to its own slots, but keeps
        serving until it reaches storage again and learns of the other process.
        """
        if run.pid == began.pid:
            return True
        for trouble in self.history.troubles:
            until = _over_at(trouble)
            if trouble.pid == run.pid and trouble.since <= began.began and run.began <= until:
                return False
            if trouble.pid == began.pid and trouble.how == "cut off" and trouble.since <= began.began <= until:
                return False
        return True

    def _at_each_start(self, runs: Sequence[Run], counts: Callable[[Run, Run], bool]) -> Iterable[tuple[Run, int]]:
        """Each run with the slots in use at its start, including its own."""
        living: list[Run] = []
        for run in runs:
            living = [other for other in living if self.ended(other) > run.began]
            living.append(run)
            yield run, sum(other.slots for other in living if counts(other, run))

    def single_use(self) -> Iterable[str]:
        """L3 and "without `idempotent` a task starts at most once": no exceptions."""
        for request in self.history.requests:
            if not request.once:
                continue
            for rank, times in Counter(run.rank for run in self.runs_of[request.id]).items():
                if times > 1:
                    where = ", ".join(_where(run) for run in self.runs_of[request.id] if run.rank == rank)
                    yield f"{request.kind} {request.id} is not idempotent and started {times} times: {where}"

    # -- answers --------------------------------------------------------------------------------------------------

    def honest(self) -> Iterable[str]:
        """If a caller was told that nothing started, nothing started."""
        for request in self.history.requests:
            runs = self.runs_of[request.id]
            if request.answers and not request.ok and not request.may_have_started and runs:
                yield f"{request.kind} {request.id} was told {request.code}, nothing started; it ran {_where(runs[0])}"

    def right(self) -> Iterable[str]:
        """An answer belongs to the requested task, and that task ran to its end."""
        for request in self.history.requests:
            if request.code == "not_ours":
                yield f"{request.kind} {request.id} raised an error that is none of ours: {request.text}"
            if not request.ok or request.expected is None or request.kind in ("submit", "stream"):
                continue
            done = [run for run in self.runs_of[request.id.removesuffix("/result")] if run.done]
            if request.kind == "gang":
                yield from self._right_of_gang(request, done)
            elif request.value != request.expected:
                yield f"{request.kind} {request.id} was answered {request.value!r}"
            elif not done:
                yield f"{request.kind} {request.id} was answered, and never ran to its end"

    def _right_of_gang(self, request: SentRequest, done: Sequence[Run]) -> Iterable[str]:
        generations = {run.generation for run in done}
        wanted = [f"{request.id}/{rank}/{max(generations, default=0)}" for rank in range(request.expected)]
        if request.value != wanted or len(generations) != 1 or len(done) != request.expected:
            yield f"gang {request.id} of {request.expected} was answered {request.value!r}, {len(done)} ranks ended"

    def answered(self) -> Iterable[str]:
        """Every request got exactly one answer, by its deadline."""
        for request in self.history.requests:
            if request.answers > 1:
                yield f"{request.kind} {request.id} got {request.answers} answers"
            frozen_s = self._frozen_s(request.pid, request.asked, request.told)
            late_s = request.told - request.due - frozen_s
            if late_s <= SLACK_S or self._client_gone(request):
                continue
            if request.answers == 0:
                yield f"{request.kind} {request.id} was never answered, {request.due - request.asked:.0f} s were given"
            else:
                yield f"{request.kind} {request.id} was answered {late_s:.1f} s too late: {request.code or 'ok'}"

    def _client_gone(self, request: SentRequest) -> bool:
        life = self.lives.get(request.pid)
        return life is not None and life.killed and life.ended < min(request.told, request.due + SLACK_S)

    # -- L5: leases -------------------------------------------------------------------------------------------------

    def expired(self) -> Iterable[str]:
        """L5: a token is valid in one epoch of one process; nothing starts on a released lease, or on one that its
        dead or frozen holder cannot have renewed; nothing starts after its caller's deadline."""
        on: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            for name in {run.token, run.gang} - {None}:
                on[str(name)].append(run)
            if run.token is not None and (first := on[run.token][0]) and _place(first) != _place(run):
                yield f"token {run.token} was used {_where(first)}, and {_where(run)}"
        for holding in self.history.holdings:
            for run in on[holding.name]:
                for why, limit in self._ends(holding):
                    if run.began > limit + SLACK_S + self._kept_s(holding.pid, run.pid, holding.asked, run.began):
                        yield f"{run.id} began {_where(run)}, {run.began - limit:.1f} s after {holding.name} {why}"
                        break
        for run in self.runs:
            request = self.requests.get(run.id)
            if request is None or request.kind == "submit":
                continue
            late_s = run.began - request.due - self._kept_s(request.pid, run.pid, request.asked, run.began)
            if late_s > SLACK_S:
                yield f"{request.kind} {run.id} began {_where(run)}, {late_s:.1f} s after its deadline"

    def _ends(self, holding: HeldGrant) -> Iterable[tuple[str, float]]:
        """Why a lease was over, and when at the latest."""
        yield "was given back", holding.left
        if holding.ttl_s is None:
            return
        life = self.lives.get(holding.pid)
        if life is not None and life.killed:
            yield "had lost its holder", life.ended + holding.ttl_s
        for trouble in self.history.troubles:
            stood_still = trouble.pid == holding.pid and trouble.how == "frozen" and trouble.since > holding.told
            if stood_still and trouble.until - trouble.since > holding.ttl_s + _TURN_S:
                yield "could not be renewed", trouble.since + holding.ttl_s

    def _kept_s(self, caller: int, worker: int, since: float, until: float) -> float:
        """How long a message between the two may have been delayed: while either was cut off."""
        return sum(
            max(0.0, min(until, _over_at(trouble)) - max(since, trouble.since))
            for trouble in self.history.troubles
            if trouble.pid in (caller, worker) and trouble.how == "cut off"
        )

    # -- L6: the ledger ---------------------------------------------------------------------------------------------

    def ledger(self) -> Iterable[str]:
        """L6, as far as a reader on a busy machine can tell: leases are shown when granted, and removed when
        released; the leases of a killed worker do not outlive their time to live."""
        shown = {each.token: each for each in self.history.shown}
        ran_on = {run.token: run.pid for run in self.runs if run.token is not None}
        for holding in self.history.holdings:
            if holding.slots is None or holding.name not in ran_on:
                continue
            pids, entry = (holding.pid, ran_on[holding.name]), shown.get(holding.name)
            if holding.left - holding.told > SLACK_S or holding.sync:
                late_s = NEVER if entry is None else entry.seen - holding.told
                if late_s > SLACK_S and self._clear(pids, holding.asked, holding.told + SLACK_S):
                    yield f"lease {holding.name} was granted, and {_in_ledger(late_s)}"
            stayed = entry is not None and not holding.lost and entry.gone > holding.left + SLACK_S
            if stayed and self._clear(pids, holding.told, holding.left + SLACK_S):
                yield f"lease {holding.name} was given back, and the ledger showed it {SLACK_S:g} s later"
        for entry in self.history.shown:
            life = self._life_that_held(entry)
            if life is None or not life.killed or entry.gone < life.ended:
                continue
            limit = max(entry.due, life.ended) + _ROUNDED_S + SLACK_S
            if entry.gone > limit and self._clear((), entry.seen, limit):
                yield f"token {entry.token} of {entry.worker} outlived its worker's end by {_seconds(entry, life)}"

    def _life_that_held(self, entry: ShownToken) -> Life | None:
        """The end of the process that was the worker when its token was first shown."""
        lives = [life for life in self.history.lives if life.worker == entry.worker and life.began < entry.seen]
        ended_before = [life for life in lives if life.ended < entry.seen - SLACK_S]
        living = [life for life in lives if life not in ended_before]
        return living[0] if len(living) == 1 else None

    def _clear(self, pids: Sequence[int], since: float, until: float) -> bool:
        """Whether storage, its reader and these processes were available all that time, and for a while before."""
        if any(begun <= until and over >= since - _SETTLES_S for begun, over in self.history.blind):
            return False
        return not any(self.lost(pid, since - _SETTLES_S, until) for pid in pids)

    # -- L9: one coordinator ----------------------------------------------------------------------------------------

    def coordinators(self) -> Iterable[str]:
        """L9: as the reader of the ledger saw it; and what members know about their gang agrees over all ranks, and
        its generation and fence only grow."""
        yield from self.history.deposed
        for gang, members in _by(self.history.members, lambda member: member.gang).items():
            fences: dict[int, int] = {}
            ranks: dict[tuple[int, int], int] = {}
            for member in sorted(members, key=lambda member: member.began):
                fence = fences.setdefault(member.generation, member.fence)
                if member.fence != fence:
                    yield f"{gang}: generation {member.generation} has the fences {fence} and {member.fence}"
                pid = ranks.setdefault((member.generation, member.rank), member.pid)
                if pid != member.pid:
                    yield f"{gang}: rank {member.rank} of generation {member.generation} is on {pid} and {member.pid}"
            for (before, low), (after, high) in pairwise(sorted(fences.items())):
                if high <= low:
                    yield f"{gang}: generation {after} has fence {high}, generation {before} had {low}"

    # -- L11: drains ------------------------------------------------------------------------------------------------

    def drains(self) -> Iterable[str]:
        """L11: a draining worker accepts nothing new, finishes its tasks within the grace time, and then exits."""
        granted = {holding.name: holding.asked for holding in self.history.holdings if holding.slots is not None}
        runs_of = _by(self.runs, lambda run: run.pid)
        for life in self.history.lives:
            if life.overdue:
                yield f"{life.name} (process {life.pid}) did not end when it was told to, and was killed"
            if life.drains == NEVER:
                continue
            for run in runs_of.get(life.pid, ()):
                late_s = run.began - life.drains - self._frozen_s(life.pid, life.drains, run.began) - _TURN_S
                if run.token is None and late_s > 0:
                    yield f"{run.id} began {_where(run)}, {late_s + _TURN_S:.2f} s after {life.name} began to drain"
                elif run.token in granted and granted[run.token] > life.drains + _TURN_S:
                    yield f"lease {run.token} was asked for when {life.name} drained, and was granted"
                if self._cut_short(run, life):
                    yield f"{run.id} ({_where(run)}) was stopped {run.ended - life.drains:.1f} s after the drain began"
                if not life.killed and life.ended < NEVER and run.ended > life.ended:
                    yield f"{life.name} left while {run.id} ran ({_where(run)})"

    def _cut_short(self, run: Run, life: Life) -> bool:
        """Whether only the drain can have stopped it, and did so before the grace time was over."""
        request = self.requests.get(run.id)
        if not run.cancelled or run.gang is not None or request is None or request.kind == "submit":
            return False
        if not life.drains < run.ended < min(life.drains + DRAIN_GRACE_S, request.due) - _TURN_S:
            return False
        return not any(self.lost(pid, request.asked, run.ended) for pid in (request.pid, run.pid))

    # -- streams ----------------------------------------------------------------------------------------------------

    def streams(self) -> Iterable[str]:
        """All items once and in order; or an error, after some of them."""
        for request in self.history.requests:
            if request.kind != "stream" or not request.answers:
                continue
            items, wanted = request.value or [], request.expected
            if items != wanted[: len(items)]:
                yield f"stream {request.id} of {len(wanted)} items gave {items}"
            elif request.ok and len(items) < len(wanted):
                yield f"stream {request.id} ended well after {len(items)} of {len(wanted)} items"

    # -- what is late ---------------------------------------------------------------------------------------------

    def _frozen_s(self, pid: int, since: float, until: float) -> float:
        """How long the process did not run. It may have noticed that itself while the harness froze it."""
        frozen = [trouble for trouble in self.history.troubles if trouble.pid == pid and trouble.how == "frozen"]
        seconds = 0.0
        for trouble in sorted(frozen, key=lambda each: each.since):
            seconds += max(0.0, min(until, trouble.until) - max(since, trouble.since))
            since = max(since, trouble.until)
        return seconds

    # -- durable tasks ----------------------------------------------------------------------------------------------

    def durable(self) -> Iterable[str]:
        """L10: every acknowledged job ended once, and correctly; fences grow with the attempts; a running job is not
        started again."""
        told = {
            request.id.removesuffix("/result"): request for request in self.history.requests if request.kind == "job"
        }
        for request in self.history.requests:
            if request.kind != "submit":
                continue
            if request.ok and request.job is not None:
                state, value = self.history.results.get(request.job, ("unknown", None))
                if state != "done" or value != request.expected:
                    yield f"job {request.job} ({request.id}) was acknowledged and ended {state}: {value!r}"
            runs = self.runs_of[request.id]
            if len({run.job for run in runs}) > 1:
                yield f"{request.id} was submitted once and is the jobs {sorted({str(run.job) for run in runs})}"
            if runs and runs[0].began < request.not_before:
                yield f"job {runs[0].job} started {request.not_before - runs[0].began:.3f} s before its time"
            yield from self._attempts(runs)
            answer = told.get(request.id)
            if answer is not None and answer.ok:
                for before, run in zip(runs, runs[1:], strict=False):
                    # What was lost after its result was known is no excuse.
                    if run.began > answer.told and not self.lost(before.pid, before.began, answer.told):
                        yield f"job {run.job} was done, and started again {run.began - answer.told:.3f} s later"

    def _attempts(self, runs: Sequence[Run]) -> Iterable[str]:
        for before, after in zip(runs, runs[1:], strict=False):
            both = f"job {before.job} ({_where(before)}, then {_where(after)})"
            if after.fence <= before.fence:
                yield f"{both}: attempt {after.attempt} has fence {after.fence}, that before it {before.fence}"
            if self.lost(before.pid, before.began, after.began):
                continue
            if self.ended(before) > after.began:
                yield f"{both} started again while it ran"
            elif before.done and self._life_end(before.pid) > after.began:
                yield f"{both} ended well, on a process that is still there, and started again"

    def keys(self) -> Iterable[str]:
        """At most as many tasks of a key run at once as its limit allows; those of a lost process do not count."""
        limit = self.history.per_key
        for key, runs in _by((run for run in self.runs if run.job and run.key), lambda run: run.key).items():

            def counts(run: Run, began: Run) -> bool:
                return not self.lost(run.pid, run.began, began.began)

            for run, running in self._at_each_start(runs, counts):
                if running > limit:
                    yield f"{running} tasks of {key} ran at once when {run.id} began, its limit is {limit}"

    def order(self) -> Iterable[str]:
        """With an ordered key, a job acknowledged before the next one was submitted has ended before that one
        starts. Jobs of a lost process may be repeated at any time."""
        lines = _by((r for r in self.history.requests if r.line and r.ok), lambda request: request.line)
        for line, requests in lines.items():
            began: list[tuple[SentRequest, list[Run]]] = [
                (request, self.runs_of[request.id]) for request in sorted(requests, key=lambda each: each.asked)
            ]
            for (before, first), (after, second) in pairwise(began):
                if not second or before.told > after.asked:
                    continue
                start = second[0].began
                for run in first:
                    if self.lost(run.pid, run.began, start):
                        break
                    if self.ended(run) > start:
                        yield f"{line}: {after.id} began {_where(second[0])}, when {before.id} ran {_where(run)}"
                        break

    # -- gangs ------------------------------------------------------------------------------------------------------

    def gangs(self) -> Iterable[str]:
        """L7 and L8: granted as a whole, and one generation after the other."""
        yield from self.history.ledger
        for id, runs in self.runs_of.items():
            generations = {(run.gang, run.generation) for run in runs if run.gang is not None}
            if len(generations) > 1 and len({run.rank for run in runs}) > 1:
                yield f"{id} ran on ranks of {sorted(generations)}"
        for gang, members in _by(self.history.members, lambda member: member.gang).items():
            for before in members:
                until = min(before.ended, self._life_end(before.pid))
                for after in members:
                    if after.generation <= before.generation or after.began >= until:
                        continue
                    if not self.lost(before.pid, before.began, after.began):
                        yield (
                            f"{gang}: rank {after.rank} of generation {after.generation} began while rank {before.rank}"
                            f" of generation {before.generation} had not stopped"
                        )

    # -- at rest ------------------------------------------------------------------------------------------------------

    def rest(self) -> Iterable[str]:
        """L2, L4, L12: nothing is held when there are no requests."""
        yield from self.history.leaks
        for run in self.runs:
            if self.ended(run) == NEVER:
                yield f"{run.id} began {_where(run)} and never ended"

    def recovery(self) -> Iterable[str]:
        """After each fault everything succeeds again."""
        yield from self.history.unrecovered


LAWS: Final[dict[str, Callable[[Judge], Iterable[str]]]] = {
    "L1 capacity": Judge.capacity,
    "L3 at most once": Judge.single_use,
    "L5 expired is dead": Judge.expired,
    "L6 ledger": Judge.ledger,
    "L9 one coordinator": Judge.coordinators,
    "L11 drain": Judge.drains,
    "streams are whole": Judge.streams,
    "may_have_started is honest": Judge.honest,
    "answers are right": Judge.right,
    "every request is answered in time": Judge.answered,
    "L10 durable tasks": Judge.durable,
    "limits of keys": Judge.keys,
    "order of ordered keys": Judge.order,
    "L7, L8 gangs": Judge.gangs,
    "L2, L4, L12 nothing leaks": Judge.rest,
    "everything recovers": Judge.recovery,
}


def judge(history: SystemHistory) -> dict[str, list[str]]:
    """Breaches by law; every law is a key."""
    it = Judge(history)
    return {law: list(check(it)) for law, check in LAWS.items()}


def _over_at(trouble: Trouble) -> float:
    return trouble.until + (_REACHES_STORAGE_S if trouble.how == "cut off" else 0.0)


def _by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def _place(run: Run) -> tuple[int, int]:
    return run.pid, run.epoch


def _in_ledger(late_s: float) -> str:
    return "the ledger never showed it" if late_s == NEVER else f"the ledger showed it {late_s:.1f} s later"


def _seconds(entry: ShownToken, life: Life) -> str:
    return "ever" if entry.gone == NEVER else f"{entry.gone - life.ended:.1f} s, {entry.due - life.ended:.1f} were left"


def _where(run: Run) -> str:
    return f"on {run.worker} process {run.pid} epoch {run.epoch} attempt {run.attempt} at {run.began:.3f}"
