"""What a pool accepts as a declaration, and what it refuses with a clear error."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Iterator

import pytest

from gangline.schemas.errors.base import InvalidName, InvalidSettings, UnknownMethod
from gangline.worker.pool.pool import ExecutorKind, Pool, Shape

from ...support.rows import in_rows


def test_a_task_is_declared_with_and_without_parentheses_and_stays_the_same_function():
    pool = Pool("images", slots=4)

    @pool.task
    async def thumbnail(path: str) -> str:
        """Make a small
        picture.

        Details that operators need not see.
        """
        return path

    @pool.task(name="resize", slots=3, idempotent=True, timeout_s=2.5, description="as told")
    def other(path: str) -> str:
        return path

    assert other("a") == "a"
    assert list(pool.tasks) == ["thumbnail", "resize"]
    first, second = pool.tasks.values()
    assert first.function is thumbnail
    assert first.info().model_dump(exclude={"schema_hash"}) == {
        "slots": 1, "idempotent": False, "streams": False, "description": "Make a small picture.", "policy": None,
    }  # fmt: skip
    assert second.info().model_dump(exclude={"schema_hash"}, exclude_defaults=True) == {
        "slots": 3, "idempotent": True, "description": "as told", "policy": {"timeout_s": 2.5},
    }  # fmt: skip
    assert second.timeout_s == 2.5
    assert repr(pool) == "Pool('images', slots=4, tasks=['thumbnail', 'resize'])"


def test_a_caller_is_told_whether_a_task_was_stopped_when_its_time_was_over():
    pool = Pool("p")

    @pool.task
    async def stops() -> None: ...

    @pool.task
    def runs_on() -> None: ...

    @pool.task(executor="thread")
    async def stops_in_a_thread() -> None: ...

    @pool.task(executor="async")
    def on_the_loop() -> None: ...

    told = [task.overdue("at", "its deadline") for task in pool.tasks.values()]
    assert told[0] == "p.stops was stopped at its deadline"
    assert told[1].startswith("p.runs_on runs on after its deadline: a thread cannot be stopped, and keeps its slots")
    assert told[2:] == [f"p.{name} was stopped at its deadline" for name in ("stops_in_a_thread", "on_the_loop")]


def test_the_kind_of_function_chooses_executor_and_shape():
    pool = Pool("p")

    @pool.task
    def plain() -> None: ...

    @pool.task
    async def coroutine() -> None: ...

    @pool.task
    def generator() -> Iterator[int]:
        yield 1

    @pool.task
    async def async_generator() -> AsyncIterator[int]:
        yield 1

    @pool.task(executor="async")
    def on_the_loop() -> None: ...

    assert {name: (task.shape, task.executor, task.streams) for name, task in pool.tasks.items()} == {
        "plain": (Shape.FUNCTION, ExecutorKind.THREAD, False),
        "coroutine": (Shape.COROUTINE, ExecutorKind.ASYNC, False),
        "generator": (Shape.GENERATOR, ExecutorKind.THREAD, True),
        "async_generator": (Shape.ASYNC_GENERATOR, ExecutorKind.ASYNC, True),
        "on_the_loop": (Shape.FUNCTION, ExecutorKind.ASYNC, False),
    }


def test_a_pool_names_the_executor_of_all_its_tasks_but_those_that_name_one():
    pool = Pool("p", executor="thread")

    @pool.task
    async def one() -> None: ...

    @pool.task(executor="async")
    async def two() -> None: ...

    assert [task.executor for task in pool.tasks.values()] == [ExecutorKind.THREAD, ExecutorKind.ASYNC]


def test_a_name_is_declared_once():
    pool = Pool("p")

    @pool.task
    def work() -> None: ...

    with pytest.raises(InvalidSettings, match=r"p\.work is declared twice"):
        pool.task(name="work")(lambda: None)


def test_one_function_serves_in_two_pools():
    def work() -> None: ...

    first, second = Pool("first"), Pool("second")
    first.task(work)
    second.task(work)
    assert first.tasks["work"].full_name == "first.work"
    assert second.tasks["work"].full_name == "second.work"


@in_rows("name", ["", "a.b", "a b", "a*", ">", "é", "x" * 129])
def test_names_that_cannot_be_part_of_a_subject_are_refused(name):
    with pytest.raises(InvalidName):
        Pool(name)
    with pytest.raises(InvalidName):
        Pool("p").task(name=name)(lambda: None)


def test_a_lambda_needs_a_name():
    with pytest.raises(InvalidName):
        Pool("p").task(lambda: None)


@in_rows(
    "options, text",
    [
        ({"slots": 0}, "slots must be a whole number from 1"),
        ({"slots": -1}, "slots must be a whole number from 1"),
        ({"slots": True}, "slots must be a whole number"),
        ({"slots": 1.5}, "slots must be a whole number"),
        ({"slots": 5}, r"p\.work costs 5 slots, but a worker of this pool has only 4"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"timeout_s": -1}, "timeout_s must be above 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be above 0"),
        ({"timeout_s": float("inf")}, "timeout_s must be above 0"),
        ({"executor": "fork"}, "executor 'fork' is not known: use one of async, thread, process"),
    ],
)
def test_task_options_out_of_bounds_are_refused(options, text):
    pool = Pool("p", slots=4)
    with pytest.raises(InvalidSettings, match=text):
        pool.task(name="work", **options)(lambda: None)
    assert not pool.tasks


@in_rows(
    "options, text",
    [
        ({"slots": 0}, "slots must be a whole number from 1 to 1000000, not 0"),
        ({"slots": "4"}, "slots must be a whole number"),
        ({"max_models": -1}, "max_models must be a whole number from 0"),
        ({"executor": "greenlet"}, "executor 'greenlet' is not known"),
        ({"labels": {"gpu": 1}}, "labels are text to text"),
    ],
)
def test_pool_options_out_of_bounds_are_refused(options, text):
    with pytest.raises(InvalidSettings, match=text):
        Pool("p", **options)


def test_only_functions_are_tasks():
    class Callable:
        def __call__(self) -> None: ...

    pool = Pool("p")
    for thing in (Callable(), Callable, len, 3):
        with pytest.raises(InvalidSettings, match="a task is a function"):
            pool.task(thing)  # type: ignore[type-var]


def test_methods_are_refused():
    pool = Pool("p")
    with pytest.raises(InvalidSettings, match="methods cannot be tasks"):

        class Group:
            @pool.task
            def work(self, x: int) -> int:
                return x


def test_what_a_child_process_cannot_import_is_refused_at_declaration():
    pool = Pool("p")

    def local() -> None: ...

    with pytest.raises(InvalidSettings, match="a child process cannot import .*<locals>.local"):
        pool.task(executor="process")(local)
    with pytest.raises(InvalidSettings, match="a child process cannot import <lambda>|<locals>"):
        pool.task(executor="process", name="f")(lambda: None)


def test_an_unknown_method_is_answered_with_the_known_ones():
    pool = Pool("p")
    with pytest.raises(UnknownMethod, match="it has: none"):
        pool.find("x")
    pool.task(name="a")(lambda: None)
    pool.task(name="b")(lambda: None)
    with pytest.raises(UnknownMethod, match="pool 'p' has no task 'x'; it has: a, b"):
        pool.find("x")
    assert pool.find("b").name == "b"
    pool.task(name="count")(lambda: None)
    with pytest.raises(UnknownMethod, match="has no task 'coutn'; did you mean 'count'\\? It has: a, b, count"):
        pool.find("coutn")


def test_tasks_cannot_be_changed_behind_the_pools_back():
    with pytest.raises(TypeError):
        Pool("p").tasks["x"] = None  # type: ignore[index]


def test_a_model_loader_needs_room_for_models_and_is_the_only_one():
    with pytest.raises(InvalidSettings, match="keeps no models: give it max_models="):
        Pool("p").model_loader(lambda model_id: model_id)
    pool = Pool("p", max_models=1)
    pool.model_loader(lambda model_id: model_id)
    with pytest.raises(InvalidSettings, match="has a model loader already"):
        pool.model_loader(lambda model_id: model_id)
    pool.model_unloader(lambda model_id, model: None)
    with pytest.raises(InvalidSettings, match="has a model unloader already"):
        pool.model_unloader(lambda model_id, model: None)


def test_an_option_that_tasks_do_not_have_is_refused_where_it_is_written():
    pool = Pool("p")
    with pytest.raises(TypeError, match=r"Pool\.task\(\) got an unexpected keyword argument 'timeut_s'"):
        pool.task(timeut_s=3)
    with pytest.raises(TypeError, match="'namespace'"):
        pool.task(namespace={})


def test_the_options_that_an_editor_shows_are_those_that_are_accepted():
    _, spelled = typing.get_overloads(Pool.task)
    options = set(inspect.signature(spelled).parameters) - {"self"}
    assert len(options) == 17
    for option in options:
        Pool("p").task(**{option: None})  # nothing is declared until there is a function
