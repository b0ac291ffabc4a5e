"""Order of starts: among the tasks of one pool that may start, the one with the first place goes first (see
durable/policies/start_order.py).

A place is the time when a task was published, less the age step for each step of its priority; so this is both what
priorities promise and what bounds starvation. It is judged while nothing is going wrong: whoever is overtaken must
begin soon after whoever overtook it, since they may have been sent together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ....bus.port.bus import StreamMessage
from ..calls.ledger import QUIET_S
from ..history.checker import Checker
from ..history.troubles import Troubles
from ..plan.durable_plan import DurableTraffic
from ..tasks.tasks import COSTS
from .records import JobModel, TaskBody

SEEN_S = 0.5
"""A task that was published this long ago has arrived, and was looked up if necessary."""
TOGETHER_S = 0.75
"""Tasks that were sent together begin together, as far as can be said: a worker that rejects one, because it is being
drained or resized, is offered it again up to half a second later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overtaking:
    """One task began before another that should have begun first."""

    at_s: float
    first: JobModel
    overtaken: JobModel
    text: str


class Turns:
    """Looks at each start.

    Args:
        messages: of an endpoint in the stream, by sequence.
        models: by request.
        quiet_for: seconds since anything has gone wrong.
        wall: the server's clock.
    """

    def __init__(
        self,
        checker: Checker,
        clock: Callable[[], float],
        traffic: DurableTraffic,
        *,
        messages: Callable[[str], list[StreamMessage]],
        models: Mapping[str, JobModel],
        quiet_for: Callable[[], float],
        troubles: Troubles,
        wall: Callable[[], float],
    ) -> None:
        self._checker = checker
        self._clock = clock
        self._traffic = traffic
        self._messages = messages
        self._models = models
        self._quiet_for = quiet_for
        self._troubles = troubles
        self._wall = wall
        self._open: list[_Overtaking] = []
        self.compared = 0
        """Pairs of tasks in which the right one went first."""

    def starts(self, model: JobModel, body: TaskBody) -> None:
        """An attempt begins."""
        if self._troubles.lossy or self._quiet_for() < QUIET_S or not self._traffic.one_pool(model.step.endpoint):
            return
        messages = self._messages(model.step.endpoint)
        mine = next((message for message in messages if _job(message) == model.job), None)
        if mine is None:
            return
        place = self._place(mine)
        for message, other in self._waiting(messages, model, body.cost):
            if self._place(message) < place:
                text = (
                    f"{model} (priority {model.step.priority}, published at {mine.at:.3f}) starts before {other} "
                    f"(priority {other.step.priority}, published at {message.at:.3f}): an age step is "
                    f"{self._traffic.age_step_s:g} s"
                )
                self._open.append(_Overtaking(at_s=self._clock(), first=model, overtaken=other, text=text))
            else:
                self.compared += 1

    def look(self) -> None:
        """Check what should have begun by now."""
        due, self._open = self._open, [each for each in self._open if self._clock() - each.at_s <= TOGETHER_S]
        for each in due:
            if each in self._open:
                continue
            if self._quiet_for() >= QUIET_S and not each.overtaken.bodies and not self._is_out(each.overtaken):
                self._checker.fail("turn", each.text)

    def _waiting(
        self, messages: list[StreamMessage], model: JobModel, cost: int
    ) -> Iterator[tuple[StreamMessage, JobModel]]:
        """Others that could have started just as well."""
        by_job = {each.job: each for each in self._models.values()}
        for message in messages:
            other = by_job.get(_job(message))
            if other is None or other is model or other.bodies or self._is_out(other):
                continue
            headers = message.headers or {}
            if "Gangline-Delay" in headers or "Gangline-Cron" in headers:
                continue  # its place is the one that it gets when its delay is over
            if COSTS[other.step.method] <= cost and self._wall() - message.at >= SEEN_S:
                yield message, other

    def _is_out(self, model: JobModel) -> bool:
        """It need not start at all, or has to wait for its key."""
        step = model.step
        return (
            step.bad is not None
            or step.key is not None
            or step.deadline_s is not None
            or model.doomed
            or model.record is not None
        )

    def _place(self, message: StreamMessage) -> tuple[float, int]:
        priority = int((message.headers or {}).get("Gangline-Priority", "0"))
        return (message.at - priority * self._traffic.age_step_s, message.sequence)


def _job(message: StreamMessage) -> str:
    return (message.headers or {}).get("Gangline-Job", str(message.sequence))
