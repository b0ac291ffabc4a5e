"""What the parts of a queue's core share: its tasks, and what is to be done."""

from __future__ import annotations

from collections import Counter

from ...schemas.errors import GanglineError
from ...schemas.jobs import JobState
from ...schemas.routes import QueueRules
from . import states
from .agenda import Agenda
from .effects import Ack, Bury, Effect, Mark, Note, Schedule, Store, Tell
from .keys import Caps, Lanes
from .pools import Pools
from .rate import RateGate
from .settings import DispatcherSettings
from .states import Step
from .task import Task
from .window import Window

Settling = Store | Note | Mark | Bury | Schedule | Ack


class Books:
    """The state of one queue. Which part changes what is said in the parts."""

    def __init__(self, endpoint: str, settings: DispatcherSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.now = float("-inf")
        self.wall = 0.0
        self.draw = 0.5
        self.taken = False
        self.waiting: int | None = None
        """Messages of the queue when it was taken; None: not known."""
        self.open = False
        """What ran before the takeover is known: tasks may be started, and end without having been."""
        self.sure = True
        """The queue is ours."""
        self.rules = QueueRules()
        self.tasks: dict[int, Task] = {}
        """By sequence; all that is not GONE."""
        self.jobs: dict[str, int] = {}
        """Sequence by job, of those that are not being scheduled nor malformed."""
        self.adoptions: dict[str, tuple[int, str, str]] = {}
        """Attempt, worker and pool, of jobs that run and have not arrived."""
        self.count: dict[Step, int] = dict.fromkeys(Step, 0)
        """Tasks by step."""
        self.pools = Pools(endpoint)
        self.caps: Caps | None = None
        """None: the rules have no limit per key."""
        self.lanes = Lanes()
        self.gate: RateGate | None = None
        """None: the rules have no rate."""
        self.agenda = Agenda()
        self.window = Window(count=settings.window_tasks, bytes_=settings.window_bytes)
        self.totals: Counter[str] = Counter()
        """Since the takeover: started, done, dead, cancelled, retried, repeated."""
        self.out: list[Effect] = []
        self.held: list[Effect] = []
        """What waits until the queue is surely ours."""

    @property
    def running(self) -> int:
        """Tasks that workers have, as far as is known."""
        return self.count[Step.RUNNING] + self.count[Step.STOPPING]

    def move(self, task: Task, to: Step) -> None:
        before, count = task.step, self.count
        states.move(task, to)
        count[before] -= 1
        count[to] += 1

    def put(self, task: Task) -> None:
        """It arrived."""
        self.tasks[task.seq] = task
        self.count[task.step] += 1
        self.window.add(task.size)

    def settle(self, effect: Settling, *told: Tell) -> None:
        """Ask for what must not be done by one who has lost the queue."""
        (self.out if self.sure else self.held).extend((effect, *told))

    def tell(self, task: Task, state: JobState, error: GanglineError | None = None) -> tuple[Tell, ...]:
        """What is to be told of a change, if the job asked for it."""
        if not task.submission.events:
            return ()
        return (
            Tell(
                seq=task.seq,
                job=task.job,
                state=state,
                attempt=task.attempts,
                at=self.wall,
                error=error,
                reason=task.reason if state is JobState.DEAD else None,
            ),
        )

    def mono(self, wall: float) -> float:
        """A Unix time on the monotonic clock."""
        return self.now + (wall - self.wall)
