"""Dead letters: reading, sending anew, throwing away."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import ConsumerSettings, StreamMessage
from gangline.dispatcher.jobs.dead_letters import DeadLetter
from gangline.dispatcher.jobs.queries import JobQueries
from gangline.dispatcher.jobs.stored import BURIED
from gangline.schemas.errors.base import InvalidName, InvalidRequest, JobError, PayloadTooLarge, UnknownJob
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.jobs import JobProgress, JobState
from gangline.schemas.wire import codec, headers

from ...support.dispatcher.jobs_rig import JobsRig, in_memory


@in_memory
async def test_a_dead_letter_says_all_that_is_known(rig: JobsRig) -> None:
    assert await rig.client.dead_letters() == []
    await rig.bury("j1", body=b'{"path": "a.png"}', **{headers.TRACEPARENT: "00-trace"})
    [letter] = await rig.client.dead_letters()
    assert (letter.job, letter.target, letter.reason, letter.attempts) == ("j1", "images.echo", "failed", 5)
    assert letter.error is not None and letter.error.message == "no such file"
    assert letter.error.details == {"type": "OSError"}
    assert (letter.arguments, letter.trace, letter.dead_at) == ({"path": "a.png"}, "00-trace", 1_896_091_200.0)
    assert await rig.client.dead_letter("j1") == letter
    assert await rig.client.dead_letters("sounds") == []
    assert await rig.client.dead_letters("images") == [letter]


@in_memory
async def test_the_newest_are_listed_oldest_first(rig: JobsRig) -> None:
    for number in range(12):
        await rig.bury(f"j{number}")
    letters = await rig.client.dead_letters(limit=3)
    assert [letter.job for letter in letters] == ["j9", "j10", "j11"]
    assert len(await rig.client.dead_letters()) == 12
    with pytest.raises(InvalidRequest):
        await rig.client.dead_letters(limit=0)
    with pytest.raises(InvalidName):
        await rig.client.dead_letters("no.name")


@in_memory
async def test_the_beginning_of_an_id_finds_its_newest_letter_with_its_body(rig: JobsRig) -> None:
    await rig.bury("images.jabcde1", body=b'"old"')
    await rig.bury("images.jabcde1", body=b'"new"')
    await rig.bury("images.jabxyz2", body=b'"other"')
    for text in ("jabcd", "images.jabc", "images.jabcde1"):
        letter = await rig.client.dead_letter(text)
        assert (letter.job, letter.arguments) == ("images.jabcde1", "new")
    for text in ("images.jab", "images.other", "images.jabcde12"):
        with pytest.raises(UnknownJob):  # too short, or the beginning of none
            await rig.client.dead_letter(text)
    await rig.bury("images.jabcfgh", body=b'"third"')
    with pytest.raises(InvalidRequest, match=r"several jobs.*images\.jabcde1, images\.jabcfgh"):
        await rig.client.drop("jabc")
    await rig.client.drop("jabx")
    assert [letter.job for letter in await rig.client.dead_letters()] == ["images.jabcde1"] * 2 + ["images.jabcfgh"]
    assert (await rig.client.replay("jabcf")).id == "images.jabcfgh"


@in_memory
async def test_a_replayed_letter_is_the_same_job_again(rig: JobsRig) -> None:
    await rig.bury(
        "j1",
        body=b'{"path": "a.png"}',
        **{headers.KEY: "u", headers.DELAY: "5m", headers.DEADLINE: "2001-01-01T00:00:00Z", headers.PRIORITY: "3"},
    )
    await rig.end("j1", state=JobState.DEAD)
    await rig.tell(JobProgress(job="j1", attempt=1, number=1, at=0.0))
    job = await rig.client.replay("j1")
    assert (job.id, job.endpoint, job.method) == ("j1", "images", "echo")
    [task] = await rig.stored()
    read = Submission.parse(rig.names, task.subject, task.headers, sequence=task.sequence, published_at=task.at)
    assert (read.job, read.key, read.priority, read.not_before, read.deadline_at) == ("j1", "u", 3, None, None)
    assert codec.from_json(task.data) == {"path": "a.png"}
    assert not [name for name in task.headers or {} if "Dead" in name or name == headers.SUBJECT]
    assert read.attempts == 5
    assert await rig.client.dead_letters() == []
    assert await (await rig.streams.jobs()).last(rig.names.job("j1", "progress")) is None
    assert (await job.status()).state is JobState.QUEUED
    await rig.end("j1", result="at last")
    assert await job.result() == "at last"


@in_memory
async def test_who_knows_a_job_from_before_its_replay_finds_it_in_the_queue(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo", value=1)
    [task] = await rig.stored()
    await (await rig.streams.tasks()).delete(task.sequence)
    await rig.bury(job.id, body=task.data)
    await rig.end(job.id, state=JobState.DEAD)
    await rig.client.replay(job.id)
    status = await job.status()
    assert (status.state, status.sequence) == (JobState.QUEUED, task.sequence + 1)


@in_memory
async def test_a_letter_is_replayed_once_by_two_at_a_time(rig: JobsRig) -> None:
    await rig.bury("j1")
    await rig.end("j1", state=JobState.DEAD)
    outcomes = await asyncio.gather(*(rig.client.replay("j1") for _ in range(4)), return_exceptions=True)
    assert all(not isinstance(outcome, Exception) or isinstance(outcome, JobError) for outcome in outcomes)
    assert len(await rig.stored()) == 1
    assert await rig.client.dead_letters() == []


@in_memory
async def test_a_letter_is_not_replayed_while_an_owner_that_does_not_answer_may_store_its_end(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would store it once more, for what was replayed."""
    had, looked = JobQueries.had, asyncio.Event()

    async def seen(self: JobQueries) -> set[str]:
        looked.set()
        return await had(self)

    monkeypatch.setattr(JobQueries, "had", seen)
    job, tasks = await rig.client.submit("images.echo"), await rig.tasks()
    await tasks.consume("q-images", ConsumerSettings(filter=rig.names.tasks_of("images")), lambda _: None)
    [task] = await rig.stored()
    await rig.bury(job.id, **{headers.MESSAGE_ID: f"{BURIED}-{task.sequence}-1"})
    await rig.end(job.id, state=JobState.DEAD)
    replaying, looking = asyncio.create_task(rig.client.replay(job.id)), asyncio.create_task(looked.wait())
    await asyncio.wait([replaying, looking], return_when=asyncio.FIRST_COMPLETED)
    assert not replaying.done()
    assert await (await rig.results()).get(rig.names.result_key(job.id)) is not None
    await tasks.delete(task.sequence)  # the owner is sure again, and acknowledges it
    await replaying
    assert [each.sequence for each in await rig.stored()] == [task.sequence + 1]


@in_memory
async def test_a_task_published_by_hand_keeps_its_number_as_its_id(rig: JobsRig) -> None:
    await rig.bury("42")
    job = await rig.client.replay("42")
    [task] = await rig.stored()
    assert job.id == "42" and (task.headers or {})[headers.JOB] == "42"


@in_memory
async def test_a_job_that_ended_well_since_is_not_replayed(rig: JobsRig) -> None:
    await rig.bury("j1")
    await rig.end("j1", state=JobState.DONE)
    with pytest.raises(JobError, match="is now done"):
        await rig.client.replay("j1")
    assert await rig.stored() == [] and len(await rig.client.dead_letters()) == 1


@in_memory
async def test_who_replays_a_letter_too_late_leaves_the_later_death_alone(rig: JobsRig) -> None:
    """Another one has replayed it, and the task is dead again."""
    await rig.bury("j1")
    letter = await rig.client.dead_letter("j1")
    await rig.end("j1", state=JobState.DEAD, reason="failed", attempts=6)
    with pytest.raises(JobError, match="is dead again"):
        await rig.client.replay(letter)
    info = await rig.client.job("j1", "images").status()
    assert (info.state, info.attempts) == (JobState.DEAD, 6)


@in_memory
async def test_a_later_death_is_another_one_also_if_no_attempt_began(rig: JobsRig) -> None:
    """It expired each time."""
    await rig.bury("j1", **{headers.MESSAGE_ID: f"{BURIED}-99-1000", headers.ATTEMPTS: "0"})
    letter = await rig.client.dead_letter("j1")
    await rig.end("j1", state=JobState.DEAD, reason="expired", attempts=0, submitted_at=1.5)
    with pytest.raises(JobError, match="is dead again"):
        await rig.client.replay(letter)
    assert await rig.stored() == []
    await rig.end("j1", revision=None, state=JobState.DEAD, reason="expired", attempts=0, submitted_at=1.0)
    await rig.client.replay(letter)
    assert len(await rig.stored()) == 1


@in_memory
async def test_a_letter_from_nowhere_cannot_be_replayed(rig: JobsRig) -> None:
    await rig.bury("j1", **{headers.SUBJECT: "elsewhere.task"})
    with pytest.raises(InvalidRequest, match="is not a task subject"):
        await rig.client.replay("j1")
    with pytest.raises(UnknownJob, match="'gangline dead ls' lists them"):
        await rig.client.replay("j2")


@in_memory
async def test_letters_can_be_thrown_away(rig: JobsRig) -> None:
    for number in range(3):
        await rig.bury(f"j{number}")
    await rig.client.drop("j1")
    assert [letter.job for letter in await rig.client.dead_letters()] == ["j0", "j2"]
    with pytest.raises(UnknownJob):
        await rig.client.drop("j1")


@in_memory
async def test_a_very_large_letter_is_read_from_the_object_store(rig: JobsRig) -> None:
    body = codec.to_json({"text": "x" * 2_000_000})
    objects = await rig.streams.objects()
    for job in ("j1", "j2", "j3"):
        await objects.put(f"dead-{job}", body)
        await rig.bury(job, body=b"", **{headers.DEAD_OBJECT: f"dead-{job}"})
    assert (await rig.client.dead_letter("j1")).arguments == {"text": "x" * 2_000_000}
    await rig.client.drop("j1")
    assert await objects.get("dead-j1") is None
    await objects.delete("dead-j2")
    with pytest.raises(JobError, match="no longer kept"):
        await rig.client.replay("j2")
    with pytest.raises(PayloadTooLarge):
        await rig.client.replay("j3")  # the server takes less now than it took then
    assert [letter.job for letter in await rig.client.dead_letters()] == ["j2", "j3"]


def test_a_letter_that_cannot_be_understood_is_shown_all_the_same() -> None:
    message = StreamMessage(
        subject="gangline.dead._._",
        data=b"\xff",
        headers={headers.DEAD_ERROR: "no json", headers.ATTEMPTS: "many", headers.DEAD_AT: "then"},
        sequence=7,
        at=5.0,
    )
    letter = DeadLetter.parse(message, "gangline.task.")
    assert (letter.job, letter.attempts, letter.dead_at, letter.arguments) == ("dead-7", 0, 5.0, b"\xff")
    assert letter.error is not None and letter.error.message == "no json"
    bare = DeadLetter.parse(StreamMessage(subject="x", data=b"", headers=None, sequence=1, at=1.0), "gangline.task.")
    assert bare.error is None and bare.arguments is None


@in_memory
async def test_a_letter_is_replayed_or_dropped_without_reading_all_others(rig: JobsRig) -> None:
    for number in range(5):
        await rig.bury(f"j{number}", body=b'{"n": 1}')
    letters = await rig.client.dead_letters(limit=None, bodies=False)
    assert [letter.job for letter in letters] == [f"j{number}" for number in range(5)]
    assert all(letter.data == b"" for letter in letters)
    assert (await rig.client.replay(letters[2])).id == "j2"
    [task] = await rig.stored()
    assert task.data == b'{"n": 1}'
    with pytest.raises(UnknownJob, match="is gone"):
        await rig.client.replay(letters[2])
    await rig.client.drop(letters[0])
    assert [letter.job for letter in await rig.client.dead_letters()] == ["j1", "j3", "j4"]
