"""The dispatcher is killed between any two things that it does: nothing is lost, and nothing is started twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.queue.effect_executor import QueueEffectExecutor
from gangline.schemas.names import JobFeed
from gangline.schemas.records.jobs import JobItem, JobState
from gangline.schemas.wire import headers
from gangline.testing.loop import current_node

from ....scale import repetitions
from ....support.durable.site import DispatcherNode, Site, simulate, simulated

SEEDS = repetitions(1, whole=5)


class Jobs:
    """One of each kind, and what must become of it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.ids: dict[str, str] = {}

    async def submit(self) -> None:
        site, ids = self.site, self.ids
        ids["quick"] = await site.submit("square", {"x": 7})
        ids["long"] = await site.submit("square", {"x": 8, "seconds": 6.0})
        ids["fails"] = await site.submit("fail", {"times": 1})
        ids["dead"] = await site.submit("fail", {"times": 9}, Gangline_Max_Attempts="2")
        ids["malformed"] = await site.submit("square", b"{")
        ids["items"] = await site.submit("items", {"count": 100})
        ids["large"] = await site.submit("large", {"size": 2000})
        ids["later"] = await site.submit("square", {"x": 3}, Gangline_Delay="2s", Gangline_Job="later")

    async def check(self) -> None:
        """All have ended, each in the one way that there is, with no try started twice."""
        site, ids = self.site, self.ids
        ended = {name: await site.ended(job) for name, job in ids.items()}
        await site.empty()
        states = {name: record.state for name, record in ended.items()}
        dead = {"dead", "malformed"}
        assert states == {name: JobState.DEAD if name in dead else JobState.DONE for name in ids}
        assert (ended["quick"].result, ended["long"].result, ended["later"].result) == (49, 64, 9)
        assert (ended["fails"].result, ended["dead"].reason, ended["dead"].attempts) == ("at last", "failed", 2)
        name = ended["large"].object
        assert name is not None and await (await site.streams.objects()).get(name) == b'"' + b"x" * 2000 + b'"'
        tries = {name: site.attempts(job) for name, job in ids.items()}
        once = dict.fromkeys(("quick", "long", "items", "large", "later"), [1])
        assert tries == {**once, "fails": [1, 2], "dead": [1, 2], "malformed": []}
        letters = [(letter.headers or {})[headers.JOB] for letter in await site.dead()]
        assert sorted(letters) == sorted(ids[name] for name in dead)
        assert await self.items() == list(range(100)) and ended["items"].items == 100
        await site.forgotten_tries()

    async def items(self) -> list[int]:
        """As a reader gets them: in order of their index, each once."""
        jobs, found, sequence = await self.site.streams.jobs(), {}, 1
        subject = self.site.names.job(self.ids["items"], JobFeed.ITEM)
        while (message := await jobs.next(subject, sequence)) is not None:
            item = JobItem.model_validate_json(message.data)
            found[item.index] = item.value
            sequence = message.sequence + 1
        return [found[index] for index in sorted(found)]


def crew(site: Site) -> None:
    """More than one worker: one alone would know a job again that is sent twice."""
    for _ in range(3):
        site.worker(slots=1)


def at_effect(monkeypatch: pytest.MonkeyPatch, victim: DispatcherNode, number: int, *, after: bool) -> list[str]:
    """Kill the victim just before (or after) the `number`th effect of its queue; the list gets all its effects."""
    seen: list[str] = []
    carry_out = QueueEffectExecutor.carry_out

    def counted(self: QueueEffectExecutor, effect: do.Effect) -> None:
        if current_node() != victim.name:
            carry_out(self, effect)
            return
        seen.append(effect.kind.value if isinstance(effect, do.Persist) else type(effect).__name__)
        if len(seen) == number and not after:
            victim.kill()
        if len(seen) >= number and not after:
            return  # the dead do nothing more, not even in this turn
        if len(seen) <= number:
            carry_out(self, effect)
        if len(seen) == number and after:
            victim.kill()

    monkeypatch.setattr(QueueEffectExecutor, "carry_out", counted)
    return seen


def killed_at_effect(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> list[str]:
    """Have the jobs run by a dispatcher that is killed there, and by the next; the effects of the first."""
    effects: list[str] = []

    async def story() -> None:
        nonlocal effects
        async with Site(result_inline_bytes=1024) as site:
            crew(site)
            first = site.dispatcher()
            effects = at_effect(patch, first, number, after=after)
            jobs = Jobs(site)
            await jobs.submit()
            await asyncio.sleep(0.2)
            site.dispatcher()
            await jobs.check()
            assert site.loop.crashed(first.name) == (len(effects) >= number)

    with monkeypatch.context() as patch:
        simulate(story())
    return effects


NEVER = 1_000_000
KINDS = [
    "Fetch",
    "LookUpResult",
    "dead letter",
    "schedule",
    "Ack",
    "RequestSlots",
    "StartAttempt",
    "result",
    "try",
    "SetQueueTimer",
]
IRREVERSIBLE = {"StartAttempt", "result", "try", "Ack"}
"""Those that a second dispatcher must not do again."""


@pytest.fixture(scope="session")
def effects() -> list[str]:
    """All of a dispatcher that is not killed, in order."""
    seen = killed_at_effect(pytest.MonkeyPatch(), NEVER, after=False)
    assert set(seen) == set(KINDS), "a kind of effect at which no test kills"
    return seen


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.long)], ids=["before", "after"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in IRREVERSIBLE else pytest.mark.long) for kind in KINDS]
)
def test_the_dispatcher_is_killed_between_two_effects(
    monkeypatch: pytest.MonkeyPatch, effects: list[str], kind: str, after: bool
) -> None:
    """The quick suite kills it before the first of each irreversible kind, the whole one at some of each."""
    places = [number for number, each in enumerate(effects, start=1) if each == kind]
    for number in places[:: max(1, len(places) // repetitions(1, whole=4))]:
        killed_at_effect(monkeypatch, number, after=after)


async def some_turns(site: Site, jobs: Jobs, number: int) -> None:
    """So many turns of the loop, while there is something to do."""
    start = site.loop.ran
    while site.loop.ran < start + number and len(site.ends) < len(jobs.ids):  # noqa: ASYNC110
        await asyncio.sleep(0.0005)


@pytest.mark.parametrize("seed", range(SEEDS))
@simulated(result_inline_bytes=1024)
async def test_the_dispatcher_is_killed_at_any_moment_and_the_next_one_too(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    crew(site)
    site.dispatcher()
    jobs = Jobs(site)
    await jobs.submit()
    for _ in range(chance.randrange(1, 4)):
        site.dispatcher()
        await site.taken()
        await some_turns(site, jobs, chance.randrange(1500))
        site.holder().kill()
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 3)
    await jobs.check()


@pytest.mark.parametrize("seed", range(SEEDS))
@simulated(result_inline_bytes=1024)
async def test_the_dispatcher_is_frozen_at_any_moment_and_comes_back(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    crew(site)
    site.dispatcher()
    site.dispatcher()
    jobs = Jobs(site)
    await jobs.submit()
    for _ in range(chance.randrange(1, 3)):
        victim = await site.taken()
        await some_turns(site, jobs, chance.randrange(1500))
        victim.freeze()
        site.loop.call_later(chance.random() * 8, victim.thaw)
        await asyncio.sleep(chance.random() * 5)
    await jobs.check()


@pytest.mark.parametrize("seed", range(repetitions(2, whole=5)))  # the first fails storage, the second the server
@simulated(result_inline_bytes=1024)
async def test_the_server_restarts_or_storage_fails_at_any_moment(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    crew(site)
    site.dispatcher()
    site.dispatcher()
    jobs = Jobs(site)
    await jobs.submit()
    for _ in range(chance.randrange(1, 3)):
        hub = site.hub
        down, up = chance.choice(((hub.stop, hub.start), (hub.storage_down, hub.storage_back)))
        await some_turns(site, jobs, chance.randrange(1500))
        down()
        await asyncio.sleep(chance.choice((0.01, 0.5, 2.0, 6.0)))
        up()
    await jobs.check()
