"""The context of a run, as its task sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..schemas.names import WorkerId
from .books import Books
from .context import TaskContext
from .memory import TaskRecord

if TYPE_CHECKING:
    from .scope import Scope


class RunContext(TaskContext):
    """The context of a run. One is made for every task and few are looked into: its facts are worked out then."""

    __slots__ = ("_facts",)

    def __init__(
        self,
        record: TaskRecord,
        method: str,
        worker: WorkerId,
        books: Books,
        fence: int,
        token: str | None,
        deadline_at: float | None,
        trace: str | None,
        meta: dict[str, Any] | None,
        scope: Scope | None = None,
    ) -> None:
        self.deadline = deadline_at
        self._scope = scope
        self._ended = False
        self._facts = (record, method, worker, books.core.epoch, books.loop, fence, token, trace, meta)

    def __getattr__(self, name: str) -> Any:
        """Of a place that is still empty."""
        if name in _MOSTLY_NONE:
            return None
        if name not in _FACTS:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        record, method, worker, epoch, loop, fence, token, trace, meta = self._facts
        meta = meta or {}
        attempt, labels, job = meta.get("attempt"), meta.get("labels"), _text(meta.get("job"))
        self.id = unique(record)
        self.pool, self.worker, self.method = worker.pool, worker.worker, method
        self.epoch, self.fence, self.token, self.trace = epoch, fence, token, trace
        self.attempt = attempt if type(attempt) is int and attempt > 0 else 1
        self.job = job
        self.endpoint = None if job is None else _text(meta.get("endpoint")) or worker.pool
        if job is not None:
            given = meta.get("fence")
            self.fence = given if type(given) is int and given > 0 else self.attempt
        self.key, self.model_id = _text(meta.get("key")), _text(meta.get("model"))
        self.labels = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
        self.shadow = meta.get("shadow") is True
        self.clock = loop.time
        return object.__getattribute__(self, name)


_MOSTLY_NONE: Final = frozenset(("_gang", "_progress", "_reason", "_waiting"))
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
