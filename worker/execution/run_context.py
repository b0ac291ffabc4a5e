"""The context of a run, as its task sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..context.task_context import TaskContext
from ..ledger.core_driver import CoreDriver
from ..slots.request_dedup import TaskRecord

if TYPE_CHECKING:
    from ..context.lifespans import Lifespans


class RunContext(TaskContext):
    """The context of a run. One is made for every task and few are looked into: its facts are worked out then."""

    __slots__ = ("_driver", "_epoch", "_meta", "_method", "_record", "_token", "_trace")

    def __init__(
        self,
        record: TaskRecord,
        method: str,
        driver: CoreDriver,
        token: str | None,
        trace: str | None,
        meta: dict[str, Any] | None,
        deadline_at: float | None,
        scope: Lifespans | None = None,
    ) -> None:
        self.deadline = deadline_at
        self._scope = scope
        self._record = record
        self._method = method
        self._driver = driver
        self._epoch = driver.core.epoch
        self._token = token
        self._trace = trace
        self._meta = meta

    def __getattr__(self, name: str) -> Any:
        """Of a place that is still empty."""
        if name in _UNSAID:
            return _UNSAID[name]
        if name not in _FACTS:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        record, worker, meta = self._record, self._driver.worker, self._meta or {}
        attempt, labels, job = meta.get("attempt"), meta.get("labels"), _text(meta.get("job"))
        self.id = unique(record)
        self.pool, self.worker, self.method = worker.pool, worker.worker, self._method
        self.epoch, self.fence, self.token, self.trace = self._epoch, record.fence, self._token, self._trace
        self.attempt = attempt if type(attempt) is int and attempt > 0 else 1
        self.job = job
        self.endpoint = None if job is None else _text(meta.get("endpoint")) or worker.pool
        if job is not None:
            given = meta.get("fence")
            self.fence = given if type(given) is int and given > 0 else self.attempt
        self.key, self.model_id = _text(meta.get("key")), _text(meta.get("model"))
        self.labels = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
        self.shadow = meta.get("shadow") is True
        self.clock = self._driver.loop.time
        return object.__getattribute__(self, name)


_UNSAID: Final = {"_ended": False, "_gang": None, "_progress": None, "_reason": None, "_waiting": None}
_FACTS: Final = frozenset(
    (
        "id",
        "pool",
        "worker",
        "method",
        "epoch",
        "fence",
        "token",
        "trace",
        "attempt",
        "job",
        "endpoint",
        "key",
        "model_id",
        "labels",
        "shadow",
        "clock",
    )
)


def unique(record: TaskRecord) -> str:
    """A task's id for logs: unique with the sender that asked."""
    return f"{record.sender.name}.{record.id}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
