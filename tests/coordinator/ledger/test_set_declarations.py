"""Declarations that come and go while the coordinator looks elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.bus.port.bus import KvEntry, KvOperation, KvWrite, StorageUnavailable
from gangline.coordinator.ledger.set_declarations import SetDeclarations
from gangline.runtime.tasks import TaskSet
from gangline.schemas.errors.base import Unavailable
from gangline.schemas.names import Names
from gangline.telemetry.logs import logger_for

from ...waiting import until

KEY = Names.gangset_key("render")
RECORD = b'{"gangs": 1, "gang": {"pool": "train", "size": 1}}'


class Bucket:
    """What is in it, and what its watch reports, which may be less."""

    def __init__(self) -> None:
        self.values = {KEY: RECORD}
        self.report: Callable[[KvEntry], None]
        self.reads = 0
        self.written: list[KvWrite] = []
        self.answers: list[int | Unavailable] = []
        """To the next writes; then they succeed."""

    async def watch(self, pattern: str, handler: Callable[[KvEntry], None]) -> Any:
        self.report = handler
        handler(self.entry(KvOperation.PUT))
        return SimpleNamespace(unsubscribe=_done)

    async def write(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        self.written += writes
        return [self.answers.pop(0) if self.answers else 1 for _ in writes]

    async def get(self, key: str) -> KvEntry | None:
        self.reads += 1
        return self.entry(KvOperation.PUT) if key in self.values else None

    def entry(self, operation: KvOperation) -> KvEntry:
        value = self.values.get(KEY, b"") if operation is KvOperation.PUT else b""
        return KvEntry(key=KEY, value=value, revision=1, operation=operation)


async def _done() -> None:
    """Nothing to do."""


class Declarations:
    def __init__(self) -> None:
        self.bucket = Bucket()
        self.told: list[int | None] = []
        self.tasks = TaskSet("declarations", logger_for("test"))
        self.sets = SetDeclarations(
            cast("Any", self.bucket),
            cast("Any", SimpleNamespace(restore=_done)),
            cast("Any", SimpleNamespace(keeps_all=lambda _: True)),
            cast("Any", SimpleNamespace(moment=lambda: {"now": 0.0, "wall": 0.0, "draw": 0.5})),
            self.tasks,
            feed=lambda event: self.told.append(event.record and event.record.gangs),  # type: ignore[union-attr]
            usable=lambda *_: True,
            deposed=lambda: None,
            log=logger_for("test"),
        )


@pytest.fixture
async def declarations() -> AsyncGenerator[Declarations, None]:
    made = Declarations()
    await made.sets.start({})
    yield made
    await made.sets.stop()
    await made.tasks.stop()


async def test_one_that_is_deleted_before_its_watch_has_seen_it_restored_is_gone(declarations: Declarations) -> None:
    declarations.bucket.report(declarations.bucket.entry(KvOperation.DELETE))  # the bucket was lost, and is there again
    await until(lambda: declarations.bucket.reads > 0)
    assert declarations.told == [1]
    del declarations.bucket.values[KEY]  # which the watch does not report: it was deleted for it before
    await until(lambda: len(declarations.told) > 1)
    assert declarations.told == [1, None]


async def test_one_that_is_reported_again_stays_and_is_not_read_any_more(declarations: Declarations) -> None:
    declarations.bucket.report(declarations.bucket.entry(KvOperation.DELETE))
    await until(lambda: declarations.bucket.reads > 0)
    declarations.bucket.report(declarations.bucket.entry(KvOperation.PUT))
    await until(lambda: not declarations.tasks)
    assert declarations.told == [1]


async def test_one_that_was_deleted_in_the_new_bucket_is_not_restored(declarations: Declarations) -> None:
    await declarations.sets.restore()
    assert [(write.key, write.revision, write.revives) for write in declarations.bucket.written] == [(KEY, 0, False)]


async def test_a_term_that_is_over_restores_nothing(declarations: Declarations) -> None:
    declarations.bucket.answers = [StorageUnavailable("no answer in time")]
    restoring = asyncio.create_task(declarations.sets.restore())
    await until(lambda: bool(declarations.bucket.written))
    declarations.sets.end()
    await restoring
    await declarations.sets.restore()
    assert len(declarations.bucket.written) == 1
