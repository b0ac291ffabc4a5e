"""submit, result, status, cancel, queue, dead, why, dispatcher: real processes on a real server."""

from __future__ import annotations

import json
import re

import pytest

from ..support.rows import case
from .conftest import until

pytestmark = [pytest.mark.server, pytest.mark.processes]


@pytest.fixture
def running(commands):
    """A dispatcher and a worker of four slots."""
    dispatcher = commands.started("dispatcher")
    worker = commands.started("worker", "words:pool", "--id", "w1")
    return dispatcher, worker


def fails(done, code, *texts):
    """The command failed with that exit code, and one line that has these texts."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
    assert all(text in done.stderr for text in texts), done.stderr


def test_what_is_submitted_waits_for_a_dispatcher_and_says_so(commands):
    job = commands.run("submit", "words.count", '{"text": "a b c"}').stdout.strip()
    shown = commands.run("status", job).stdout
    assert "state      queued\n" in shown and "words.count" in shown
    assert "no dispatcher has the queue of 'words'" in shown and "start one with 'gangline dispatcher'" in shown
    assert "gangline dispatcher" in commands.run("why", job).stdout
    [queue] = commands.json("queue", "ls")
    assert (queue["endpoint"], queue["depth"], queue["dispatcher"]) == ("words", 1, "")
    listed = commands.run("queue", "ls")
    assert "nobody" in listed.stdout and "start 'gangline dispatcher'" in listed.stderr
    assert "dispatcher nobody" in commands.run("queue", "show", "words").stdout
    fails(commands.run("result", job, "-t", "0"), 4, "has not ended yet")
    fails(commands.run("result", job, "-t", "0.2"), 3, "did not end within 0.2 s", "no dispatcher has the queue")
    waiting = commands.start("result", job)
    waiting.await_output(rf"waits: {job} \(words.count\) is queued.*start one with 'gangline dispatcher'")
    commands.run("cancel", job)
    assert waiting.wait() == 1


def test_queues_and_jobs_are_watched(commands):
    queues, jobs = commands.start("queue", "ls", "--watch"), commands.start("jobs", "ls", "--watch", "--json")
    job = commands.run("submit", "words.count", '["a b"]').stdout.strip()
    queues.await_output(r"added    words  DEPTH 1  .*BY nobody")
    queues.await_output(r"^'nobody': start 'gangline dispatcher'$")
    added = json.loads(jobs.await_output(rf'^\{{"event": "added".*{job}.*\}}$'))
    assert (added["job"]["job"], added["job"]["state"]) == (job, "queued")
    commands.run("cancel", job)
    jobs.await_output(rf'^\{{"event": "(gone|changed)".*{job}.*\}}$')


def test_a_submitted_task_can_be_cancelled_once(commands):
    job = commands.run("submit", "words.count", '["a b"]').stdout.strip()
    assert commands.run("cancel", job).stdout == f"{job} is cancelled\n"
    fails(commands.run("cancel", job), 1, "had already ended")
    fails(commands.run("result", job), 1, "was cancelled")
    assert commands.json("status", job)["state"] == "cancelled"
    [queue] = commands.json("queue", "ls")
    assert queue["depth"] == 1, "left for the next dispatcher, who stops it where it may run"


def test_a_cancellation_with_a_reason_is_recorded_and_says_how_it_went(commands):
    job = commands.run("submit", "words.count", '["a b"]').stdout.strip()
    own = commands.run("submit", "words.count", '["a b"]').stdout.strip()
    commands.run("cancel", own)
    assert commands.run("cancel", job, "--reason", "wrong input").stdout == f"{job} is cancelled\n"
    assert commands.run("cancel", job, "--reason", "once more").returncode == 1
    told = [
        (record["user"], record["action"], record["target"], record["reason"], record["stage"], record["error"])
        for record in commands.json("audit")
    ]
    assert told == [
        ("anybody", "cancel", job, "wrong input", "begun", ""),
        ("anybody", "cancel", job, "wrong input", "done", ""),
        ("anybody", "cancel", job, "once more", "begun", ""),
        ("anybody", "cancel", job, "once more", "failed", "job_error"),
    ]


@pytest.mark.long
def test_schedules_are_listed_paused_resumed_and_removed(commands):
    commands.started("dispatcher")
    assert commands.run("schedules", "ls").stderr == "no schedules: 'gangline submit --cron' declares one\n"
    declare = ("submit", "words.count", '["a b"]', "--idempotency-key", "nightly", "--cron")
    id = commands.run(*declare, "0 3 * * *", "--time-zone", "Europe/Berlin").stdout.strip()
    until(lambda: commands.json("schedules", "ls"), "the dispatcher takes the schedule")
    shown = commands.run("schedules", "ls").stdout
    assert "nightly" in shown and "words.count" in shown and "  0 3 * * * Europe/Berlin" in shown
    assert re.search(r" 20\d\d-\d\d-\d\d 03:00:00\+0[12]00, in \d+ (d|h|min|s)\b", shown)
    paused = commands.run("schedules", "pause", "nightly", "--reason", "quiet, please")
    assert paused.stdout == "nightly is paused\n"
    assert "paused" in commands.run("schedules", "ls").stdout
    assert "quiet, please" in commands.run("audit").stdout
    resumed = commands.run("schedules", "resume", id)
    assert resumed.stdout.startswith("nightly is resumed: next run 20")
    [show] = [commands.run("schedules", "show", id[:-8]).stdout]
    assert show.count("then ") == 2 and '["a b"]' in show
    fails(commands.run("result", id), 2, "is a schedule")
    assert commands.run("schedules", "rm", "nightly").stdout == "nightly is removed\n"
    fails(commands.run("schedules", "rm", "nightly"), 1)


@pytest.mark.long
def test_removing_a_schedule_that_a_task_declares_says_that_it_comes_back(commands):
    (commands.folder / "ticking.py").write_text(
        "import gangline\n"
        "pool = gangline.Pool('ticking', slots=1)\n"
        "@pool.task(cron='0 3 * * *')\n"
        "def tick() -> None: ...\n"
    )
    commands.started("dispatcher")
    commands.started("worker", "ticking:pool")
    until(lambda: commands.json("schedules", "ls"), "the dispatcher stores the schedule")
    assert "by the task (cron=)" in commands.run("schedules", "show", "tick").stdout
    assert commands.run("schedules", "pause", "tick").stdout == "tick is paused\n"
    removed = commands.json("schedules", "rm", "tick")
    assert (removed["name"], removed["in_code"]) == ("tick", True)
    commands.run("submit", "ticking.tick", "--cron", "@daily", "--idempotency-key", "mine")
    until(lambda: commands.json("schedules", "ls"), "the dispatcher takes the schedule")
    assert not commands.json("schedules", "show", "mine")["in_code"]


def test_schedules_are_shown_and_cancelled(commands):
    later = commands.run("submit", "words.count", '["a"]', "--delay", "1h", "--key", "k").stdout.strip()
    shown = commands.run("status", later).stdout
    assert "state      scheduled" in shown and "its time has not come" in shown
    assert re.search(r", in (1 h|59 min \d+ s)$", shown, re.M)
    assert "until" in commands.run("why", later).stdout
    nightly = commands.json("submit", "words.count", '["a"]', "--cron", "0 0 3 * * *")
    assert nightly["repeats"]
    assert "recurring: 0 0 3 * * *" in commands.run("status", nightly["job"]).stdout
    for job in (later, nightly["job"]):
        assert commands.run("cancel", job).stdout == f"{job} is cancelled\n"
        assert commands.json("status", job)["state"] == "cancelled", "the next dispatcher schedules neither"


def test_mistakes_are_told_in_one_line(commands, invoke):
    cases = [
        (("submit", "words"), 2, "is not ENDPOINT.METHOD"),
        (("submit", "words.count", "{"), 2, "the arguments are not JSON"),
        (("submit", "words.count", "--cron", "nonsense"), 2, "a schedule has five fields of cron"),
        (("submit", "words.count", "--delay", "soon"), 2, "is not a duration"),
        (("submit", "words.count", "--at", "2030-01-01T00:00:00"), 2, "has no time zone"),
        (("submit", "words.count", "--at", "noon"), 2, "is not a timestamp"),
        (("submit", "words.count", "--delay", "1s", "--cron", "@daily"), 2, "exclude each other"),
        (("submit", "words.count", "--cron", "@daily", "--wait"), 2, "leave one of them out"),
        (("submit", "words.count", "--time-zone", "Europe/Berlin"), 2, "is the time zone of --cron"),
        (("submit", "words.count", "--ordered"), 2, "ordered needs a key"),
        (("submit", "words.count", "--priority", "9999999"), 2, "priority is 9999999"),
        (("result", "no.such.id"), 2, "may only have letters"),
        (("result", "nothing"), 1, "is not known"),
        (("status", "7", "--endpoint", "words"), 1, "job '7' is not known"),
        (("cancel", "nothing"), 1, "is not known"),
        (("why", "nothing"), 3, "there is no submitted task 'nothing' either"),
        (("queue", "show", "words"), 3, "has neither tasks nor a dispatcher"),
        (("dead", "show", "nothing"), 1, "there is no dead letter of job 'nothing'"),
        (("dead", "replay"), 2, "give job ids, or --all"),
        (("dead", "rm", "j1", "--endpoint", "words"), 2, "--endpoint needs --all"),
    ]
    for arguments, code, text in cases:
        with case(arguments, code, text):
            done = invoke(*arguments, env=commands.environment)
            assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
            assert text in done.stderr


def test_nothing_to_show_is_told_on_stderr(commands):
    assert commands.run("dead", "ls").stderr == "no dead letters\n"
    assert "nothing is submitted" in commands.run("queue", "ls").stderr


def test_a_submitted_task_runs_and_its_result_is_kept(commands, running):
    job = commands.run("submit", "words.count", '{"text": "a b c"}').stdout.strip()
    assert commands.run("result", job).stdout == "3\n"
    assert commands.run("submit", "words.shout", '["loud"]', "--wait").stdout == "LOUD\n"
    status = commands.json("status", job)
    assert (status["state"], status["worker"], status["attempts"]) == ("done", "words.w1", 1)
    same = [commands.run("submit", "words.count", '["a"]', "--idempotency-key", "o7").stdout for _ in range(2)]
    assert same[0] == same[1]
    [queue] = commands.json("queue", "ls")
    assert queue["endpoint"] == "words" and queue["dispatcher"] and queue["done"] >= 2
    assert queue["dispatcher"] in commands.run("queue", "show", "words").stdout


def test_what_does_not_stop_when_it_is_cancelled_is_said_to_run(commands, running):
    job = commands.run("submit", "words.shrug").stdout.strip()
    commands.await_file("began")
    told = commands.run("cancel", job).stdout
    assert told == (
        f"{job} was asked to stop and is still running on words.w1: 'gangline status {job}' shows when it has ended\n"
    )
    commands.await_file("told")
    assert commands.json("cancel", job) == {"job": job, "cancelled": True, "running": True}
    (commands.folder / "enough").touch()
    assert commands.run("result", job).stdout == "done\n"


def test_a_running_task_is_shown_explained_and_cancelled(commands, running):
    job = commands.run("submit", "words.hold", "--events").stdout.strip()
    commands.await_file("began")
    shown = commands.run("status", job).stdout
    assert "state      running, attempt 1" in shown and "words.w1" in shown
    assert f"{job} (words.hold) is running" in commands.run("why", job).stdout
    watch = commands.start("status", job, "--watch")
    watch.await_output("running")
    assert commands.run("cancel", job).returncode == 0
    commands.await_file("cancelled")
    watch.await_output("cancelled")
    assert watch.wait() == 1


def test_watching_a_task_without_events_says_that_its_states_are_not_told(commands, running):
    job = commands.run("submit", "words.hold").stdout.strip()
    commands.await_file("began")
    watch = commands.start("status", job, "--watch")
    watch.await_output("it is running; its states are published only if it was submitted with --events")
    commands.run("cancel", job)
    watch.await_output("cancelled")
    assert watch.wait() == 1


@pytest.mark.long
def test_items_of_a_submitted_task_are_read_late(commands, running):
    job = commands.run("submit", "words.each", '["a b c"]').stdout.strip()
    for _ in range(2):
        assert commands.run("result", job, "--items").stdout.split() == ['"a"', '"b"', '"c"']
    called = commands.run("call", "words.each", '["a b c"]').stdout
    assert json.loads(called) == ["a", "b", "c"]
    assert commands.run("result", job).stdout == called
    assert commands.run("submit", "words.each", '["a b c"]', "--wait").stdout == called


def test_a_dead_letter_is_shown_replayed_and_dropped(commands, running):
    options = ("--max-attempts", "2", "--backoff", "10ms")
    job = commands.run("submit", "words.fail", '["bad luck"]', *options).stdout.strip()
    why = "is a dead letter, failed after 2 attempts: words.fail raised ValueError: bad luck"
    fails(commands.run("result", job), 1, why, f"gangline dead show {job}")
    [letter] = commands.json("dead", "ls")
    assert (letter["job"], letter["reason"], letter["attempts"]) == (job, "failed", 2)
    table = commands.run("dead", "ls", "--endpoint", "words").stdout
    assert job in table and "words.fail" in table and "ValueError: bad luck" in table
    shown = commands.run("dead", "show", job).stdout
    assert 'arguments  ["bad luck"]' in shown and "raise ValueError(why)" in shown
    short = job[:-8]
    assert commands.json("dead", "show", short)["job"] == job
    assert commands.run("dead", "replay", short).stdout == f"{job} is queued again\n"
    commands.run("result", job)
    assert len(commands.json("dead", "ls")) == 1
    assert commands.run("dead", "rm", short).stdout == f"{job} is removed\n"
    done = [record for record in commands.json("audit") if record["stage"] == "done"]
    assert [(record["action"], record["target"]) for record in done] == [("dead replay", job), ("dead rm", job)]
    fails(commands.run("dead", "rm", short), 1, f"there is no dead letter of job '{short}'")
    assert commands.json("dead", "ls") == []


@pytest.mark.long
def test_a_dead_run_of_a_schedule_is_listed_replayed_and_removed_by_one_name(commands, running):
    options = ("--cron", "@every 1s", "--idempotency-key", "nightly", "--max-attempts", "1")
    commands.run("submit", "words.fail", '["bad luck"]', *options)
    until(lambda: commands.json("dead", "ls"), "a run becomes a dead letter")
    commands.run("schedules", "rm", "nightly")
    letter, *_ = commands.json("dead", "ls")
    title = f"{letter['schedule']}-{letter['job']}"
    assert title in commands.run("dead", "ls").stdout
    assert commands.run("dead", "replay", title).stdout == f"{title} is queued again\n"
    until(lambda: title in commands.run("dead", "ls").stdout, "it fails again")
    assert commands.run("dead", "rm", title).stdout == f"{title} is removed\n"


def test_options_of_the_dispatcher_are_checked(commands):
    fails(commands.run("dispatcher", "--max-attempts", "0"), 2, "max_attempts")


def test_the_result_of_a_raw_publish_is_found_by_its_sequence(commands, running, publish_raw):
    sequence = publish_raw("words.count", b'{"text": "by hand"}')
    assert commands.run("result", str(sequence)).stdout == "2\n"
    assert json.loads(commands.run("status", str(sequence), "--json").stdout)["state"] == "done"


def test_status_without_a_job_points_to_what_shows_the_whole_system(invoke):
    done = invoke("status")
    assert done.exit_code == 2
    assert "'gangline top' shows the whole system" in done.output and "'gangline health'" in done.output


def test_a_task_that_is_dead_because_of_its_name_is_told_the_nearest_one(commands):
    commands.started("dispatcher")
    commands.started("worker", "words:pool", "--id", "w1")
    job = commands.json("submit", "words.coutn", '{"text": "a"}')["job"]
    until(lambda: commands.json("status", job)["state"] == "dead", "there is no such task")
    assert "did you mean 'count'? It has: count, shout" in commands.run("dead", "show", job).stdout
    called = commands.run("call", "words.coutn", '{"text": "a"}')
    assert called.returncode == 2 and "did you mean 'count'?" in called.stderr
