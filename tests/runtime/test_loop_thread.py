"""Plain functions in front of what belongs to a loop in a thread of its own."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Generator
from types import TracebackType

import pytest

from gangline.runtime.loop_thread import LoopThread, OwningProxy, SyncContext, iterate
from gangline.schemas.errors.base import ClosedError, InvalidSettings


class Target:
    """Notes what is done to it, and by which thread."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.thread = threading.current_thread()

    async def start(self) -> Target:
        self.done.append("start")
        return self

    async def close(self) -> None:
        self.done.append("close")

    async def count(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                yield number
        finally:
            self.done.append("closed")

    async def __aenter__(self) -> str:
        self.done.append("enter")
        return "entered"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done.append(f"exit {error}")

    def __repr__(self) -> str:
        return "Target()"


class Proxy(OwningProxy[Target]):
    """With its inside shown."""

    @property
    def target(self) -> Target:
        return self._target

    def like(self, target: Target) -> Proxy:
        return self._with(target)

    def context(self) -> SyncContext[str]:
        return SyncContext(self._thread, self._target)

    def caller(self) -> threading.Thread:
        return self._thread.call(threading.current_thread)

    def count(self) -> Generator[int, None, None]:
        return iterate(self._thread, self._target.count())


async def opened() -> Target:
    return Target()


def test_it_is_opened_used_and_closed_on_a_thread_of_its_own() -> None:
    with Proxy(opened) as proxy:
        thread = proxy.target.thread
        assert thread is not threading.current_thread()
        assert proxy.start() is proxy
        assert proxy.caller() is thread
        assert repr(proxy) == "SyncTarget()"
    assert proxy.target.done == ["start", "close"]
    assert not thread.is_alive()
    proxy.close()
    with pytest.raises(ClosedError):
        proxy.caller()


def test_a_thread_whose_target_does_not_open_ends() -> None:
    threads: list[threading.Thread] = []

    async def fail() -> Target:
        threads.append(threading.current_thread())
        raise ValueError("closed today")

    with pytest.raises(ValueError, match="closed today"):
        Proxy(fail)
    assert not threads[0].is_alive()


def test_a_context_is_entered_and_left_there_with_the_error_of_its_block() -> None:
    with Proxy(opened) as proxy:
        with proxy.context() as found:
            assert found == "entered"
        with pytest.raises(KeyError), proxy.context():
            raise KeyError("mine")
        assert proxy.target.done == ["enter", "exit None", "enter", "exit 'mine'"]


def test_what_was_entered_when_the_wrapping_fails_is_left_again() -> None:
    class Wrong(SyncContext[str]):
        def _entered(self, entered: object) -> str:
            raise KeyboardInterrupt

    with Proxy(opened) as proxy:
        with pytest.raises(KeyboardInterrupt):
            Wrong(proxy._thread, proxy.target).__enter__()
        assert proxy.target.done == ["enter", "exit None"]


def test_leaving_a_loop_over_items_early_closes_their_source() -> None:
    with Proxy(opened) as proxy:
        items = proxy.count()
        assert next(items) == 0
        items.close()
        assert proxy.target.done == ["closed"]
        assert list(proxy.count()) == [0, 1, 2]


def test_it_cannot_be_used_on_its_own_loop() -> None:
    with Proxy(opened) as proxy:

        async def inside() -> None:
            with pytest.raises(RuntimeError, match="use Client there"):
                proxy._thread.call(asyncio.get_running_loop)

        proxy._thread.run(inside())


def test_the_outcome_of_what_it_runs_is_the_callers() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with Proxy(opened) as proxy:
        with pytest.raises(KeyError, match="mine"):
            proxy._thread.run(fail())
        with pytest.raises(concurrent.futures.CancelledError):
            proxy._thread.run(give_up())


def test_an_interrupt_cancels_what_runs_and_waits_until_it_has_cleaned_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    cleaned_up: list[str] = []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append("slots")

    def interrupted(call: object) -> None:
        assert begun.wait(30)
        raise KeyboardInterrupt

    with Proxy(opened) as proxy:
        monkeypatch.setattr("gangline.runtime.loop_thread._ThreadCall.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            proxy._thread.run(work())
        monkeypatch.undo()
        assert cleaned_up == ["slots"]


@pytest.mark.processes
def test_after_a_fork_it_says_that_the_child_has_to_connect_itself() -> None:
    with Proxy(opened) as proxy:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                try:
                    proxy.caller()
                except ClosedError as error:
                    os.write(writing, error.message.encode())
                proxy.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 1000).decode() == "this client was made before a fork: connect in the child process"
        assert proxy.caller() is proxy.target.thread


@pytest.mark.parametrize("module", ["gevent.thread", "eventlet.green.thread"])
def test_greenlets_in_the_place_of_threads_are_refused_at_once(monkeypatch, module):
    def start_new_thread(function, arguments):
        raise AssertionError("it would wait for ever")

    start_new_thread.__module__ = module
    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    with pytest.raises(InvalidSettings, match=f"{module.partition('.')[0]} has replaced them.*gthread"):
        LoopThread()
