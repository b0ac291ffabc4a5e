"""Durable tasks from end to end: whoever submits them, and in whatever language they run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import gangline
from gangline.bus.port.bus import NoResponders

from ..processes import ForkServer
from ..waiting import PATIENCE_S, until
from .conftest import HERE, LANGUAGES, Subject, clean_environment

pytestmark = [pytest.mark.server, pytest.mark.processes]

Produce = Callable[..., "asyncio.Future[str]"]


@contextlib.contextmanager
def running(forks: ForkServer, command: str, url: str, namespace: str) -> Iterator[None]:
    """`gangline <command>` as a process."""
    process = forks.start(["-m", "gangline.cli", command], environment=clean_environment(url, namespace), cwd=HERE)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def stored(subject: Subject, stream: str) -> bool:
    """Whether the server has that stream."""
    answer = await subject.bus.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout_s=PATIENCE_S)
    return "error" not in json.loads(answer.data)


@pytest.fixture
async def dispatcher(subject: Subject, forks: ForkServer, nats_url: str, namespace: str) -> AsyncIterator[None]:
    with running(forks, "dispatcher", nats_url, namespace):
        for stream in (subject.names.tasks_stream, f"KV_{subject.names.results_bucket}"):
            await until(lambda: stored(subject, stream), stream)  # noqa: B023
        yield


@pytest.fixture
async def gateway(subject: Subject, forks: ForkServer, nats_url: str, namespace: str) -> AsyncIterator[None]:
    with running(forks, "gateway", nats_url, namespace):

        async def answers() -> bool:
            call = subject.names.call("shop", "count")
            with contextlib.suppress(NoResponders):
                answer = await subject.bus.request(call, b'{"text": "a"}', timeout_s=PATIENCE_S)
                return answer.data == b"1"
            return False

        await until(answers)
        yield


@pytest.fixture(params=LANGUAGES)
def produce(request: pytest.FixtureRequest, nats_url: str, namespace: str) -> Produce:
    """The producer's command in that language: what it printed; AssertionError with its stderr if it failed."""
    environment = clean_environment(nats_url, namespace)
    if request.param == "go":
        program = request.getfixturevalue("go_programs") / "producer"

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [program, *words], env=environment, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE_S
            )
    else:
        forks: ForkServer = request.getfixturevalue("forks")

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return forks.run(["-m", "gangline.cli", *words], environment=environment, cwd=HERE, timeout=PATIENCE_S)

    def printed(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return lambda *words: asyncio.ensure_future(asyncio.to_thread(printed, *words))


async def test_a_producer_calls_a_task(subject: Subject, gateway, produce):
    assert await produce("call", "shop.count", '{"text": "a b c"}') == "3"


async def test_a_producer_submits_a_task_and_reads_its_result(subject: Subject, dispatcher, produce):
    job = (await produce("submit", "shop.count", '{"text": "a b"}')).split()[-1]
    assert await produce("result", job) == "2"


async def test_a_job_that_fails_for_good_is_told_with_its_reason(subject: Subject, dispatcher, produce):
    names = subject.names
    await subject.bus.request(
        names.task("shop", "fail"),
        b'{"text": "no paper"}',
        timeout_s=PATIENCE_S,
        headers={"Gangline-Job": "j1", "Gangline-Max-Attempts": "1"},
    )
    with pytest.raises(AssertionError, match="no paper"):
        await produce("result", "j1")


@pytest.mark.long
@pytest.mark.parametrize("produce", ["go"], indirect=True)  # ours says at once that it does not know the job
async def test_a_result_can_be_waited_for_before_the_first_dispatcher_runs(
    subject: Subject, produce, forks, nats_url, namespace
):
    asked = produce("result", "early")  # when neither the job nor the bucket of results is there
    with running(forks, "dispatcher", nats_url, namespace):
        await until(lambda: stored(subject, subject.names.tasks_stream))
        await subject.bus.request(
            subject.names.task("shop", "count"),
            b'{"text": "a b c"}',
            timeout_s=PATIENCE_S,
            headers={"Gangline-Job": "early"},
        )
        assert await asked == "3"


async def test_a_task_that_is_published_by_hand_runs_and_its_sequence_is_its_id(subject: Subject, dispatcher):
    names = subject.names
    answer = await subject.bus.request(names.task("shop", "count"), b'{"text": "a b c"}', timeout_s=PATIENCE_S)
    job = json.loads(answer.data)["seq"]
    results = await subject.bus.bucket(names.results_bucket, gangline.BucketSettings(), make=False)

    async def done() -> bool:
        entry = await results.get(names.result_key(str(job)))
        return entry is not None and json.loads(entry.value)["result"] == 3

    await until(done)


async def test_items_of_a_job_can_be_read_late(subject: Subject, dispatcher, nats_url, namespace):
    async with gangline.connect(nats_url, namespace=namespace) as client:
        job = await client.submit("shop.upto", end=5)
        await job.result(timeout_s=PATIENCE_S)
        assert [item async for item in job.items()] == [0, 1, 2, 3, 4]


async def test_a_job_is_cancelled_where_it_runs(subject: Subject, dispatcher, nats_url, namespace):
    async with gangline.connect(nats_url, namespace=namespace) as client:
        job = await client.submit("shop.pause", seconds=60.0)
        await until(subject.running)
        assert await job.cancel()
        await until(subject.idle)
