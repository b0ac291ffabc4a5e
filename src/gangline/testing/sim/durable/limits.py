"""What routes and keys promise about durable tasks: at most this many at once, in order, and not too fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....bus.memory.server import MemoryServer
from ....bus.port.bus import StreamMessage
from ....schemas.names import Names
from ....worker.context.task_context import TaskContext
from ..history.checker import Checker
from ..history.troubles import Troubles
from ..plan.durable_plan import DurableTraffic
from .records import JobModel, TaskBody

BUNCHED_S = 2.6
"""How much closer together starts may be than their sending was, because of late messages; in the worst case,"""
BUNCHED_CALM_S = 0.01
"""... and while nothing is going wrong."""


class Limits:
    """Checked at each start."""

    def __init__(
        self,
        checker: Checker,
        clock: Callable[[], float],
        hub: MemoryServer,
        names: Names,
        traffic: DurableTraffic,
        troubles: Troubles,
        models: Mapping[str, JobModel],
        *,
        ended: Callable[[str], bool],
        explained: Callable[[TaskBody], bool],
    ) -> None:
        """
        Args:
            ended: whether the record of that job's end is stored.
            explained: whether something befell that body which would let it be thought dead.
        """
        self._checker = checker
        self._clock = clock
        self._hub = hub
        self._names = names
        self._traffic = traffic
        self._troubles = troubles
        self._models = models
        self._ended = ended
        self._explained = explained
        self._starts: dict[str, list[float]] = {}
        """By endpoint."""

    def starts(self, model: JobModel, context: TaskContext) -> None:
        """An attempt is about to be counted."""
        step = model.step
        if context.endpoint != step.endpoint or context.key != step.key:
            text = f"{model} runs with endpoint {context.endpoint} and key {context.key}"
            self._checker.fail("L10", text)
        self._check_room(model)
        ordered = step.key is not None and (step.ordered or self._traffic.most(step.endpoint, "ordered"))
        if ordered and not self._troubles.lossy:
            self._check_order(model)
        self._check_rate(step.endpoint)

    def _others(self, model: JobModel, *, key: bool) -> list[JobModel]:
        """Other running tasks of its endpoint (and key) that nothing could have made look dead."""
        step = model.step
        return [
            other
            for other in self._models.values()
            if other is not model
            and other.step.endpoint == step.endpoint
            and (not key or other.step.key == step.key)
            and any(not self._explained(body) for body in other.running)
        ]

    def _check_room(self, model: JobModel) -> None:
        step = model.step
        per_key = self._traffic.most(step.endpoint, "per_key")
        if per_key is not None and step.key is not None:
            others = self._others(model, key=True)
            if len(others) >= per_key:
                text = f"{model} starts while {_names(others)} of its key run: the limit is {per_key}"
                self._checker.fail("per-key", text)
        max_running = self._traffic.most(step.endpoint, "max_running")
        if max_running is not None:
            others = self._others(model, key=False)
            if len(others) >= max_running:
                text = f"{model} starts while {_names(others)} of its endpoint run: the limit is {max_running}"
                self._checker.fail("max-running", text)

    def _check_order(self, model: JobModel) -> None:
        """Every task of the same key that was published before it has ended."""
        by_job = {each.job: each for each in self._models.values()}
        messages = self.messages(model.step.endpoint)
        if not any(_job(message) == model.job for message in messages):
            return  # cancelled in the stream meanwhile
        for message in messages:
            job = _job(message)
            if job == model.job:
                return
            other = by_job.get(job)
            if other is None or other is model or other.step.key != model.step.key or other.step.bad is not None:
                continue
            if not (other.step.ordered or self._traffic.most(model.step.endpoint, "ordered")):
                continue
            if "Gangline-Delay" in (message.headers or {}):
                continue  # its place is the one that it gets when its delay is over
            ended = self._ended(job) if other.step.keeps_result else not other.running
            if not ended:
                self._checker.fail("order", f"{model} starts before {other}, published before it, has ended")

    def messages(self, endpoint: str) -> list[StreamMessage]:
        """Its messages in the stream."""
        stream = self._hub.streams.find(self._names.tasks_stream)
        prefix = f"{self._names.namespace}.task.{endpoint}."
        return [] if stream is None else [each for each in stream.messages.values() if each.subject.startswith(prefix)]

    def _check_rate(self, endpoint: str) -> None:
        rate, burst = self._traffic.most(endpoint, "rate_per_s"), self._traffic.most(endpoint, "burst")
        times = self._starts.setdefault(endpoint, [])
        times.append(self._clock())
        if rate is None or burst is None:
            return
        bunched_s = BUNCHED_CALM_S if self._troubles.calm else BUNCHED_S
        for number, time in enumerate(times):
            count, span_s = len(times) - number, times[-1] - time
            if count > burst + rate * (span_s + bunched_s) + 0.001:
                self._checker.fail("rate", f"{endpoint} started {count} tasks in {span_s:.3f} s: the rate is {rate}/s")
                return


def _job(message: StreamMessage) -> str:
    return (message.headers or {}).get("Gangline-Job", str(message.sequence))


def _names(models: list[JobModel]) -> str:
    return ", ".join(str(each) for each in models)
