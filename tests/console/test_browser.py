"""The console in a real browser, on a real system: every page shows its rows without errors and follows changes; every
action asks again, does what it says and is recorded; accidents are told, and pages go on after them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bench.console.browser import BROWSER, Page, chromium
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import Storage
from gangline.bus.settings.connection import ConnectionSettings
from gangline.bus.streams.history_recorder import HistorySettings
from gangline.cli.console.options import ConnectionOptions
from gangline.coordinator.service import Coordinator
from gangline.coordinator.settings.settings import ServiceSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gangs.gang import Gang
from gangline.dispatcher.jobs.job import Job
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GangFailed, GanglineError, NoCoordinator
from gangline.schemas.messages.gangs import GangListReply, GangListRequest, GangReply
from gangline.schemas.names import GangOperation, Names, public_id
from gangline.schemas.records.audit import AuditStage
from gangline.worker.context.task_context import current_task
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ..processes import ForkServer
from ..waiting import PATIENCE_S, until
from .conftest import ServedConsole, Visitor

pytestmark = [
    pytest.mark.server,
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(
        BROWSER is None, reason="no browser: install chromium, or name one in the environment variable CHROMIUM"
    ),
]


HISTORY = HistorySettings(storage=Storage.MEMORY, max_bytes=-1)


class PopulatedSystem:
    """Two workers, a dispatcher and a coordinator, with something on every page.

    Of the pool words, one worker has a lease of two slots, and a job runs; a gang has a slot of letters, and a second
    gang waits for more slots of words than are free. One job waits in a queue that is paused, one is dead, one
    schedule and one standing set are declared.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.names = Names(namespace)
        self.options = ConnectionOptions(server=url, namespace=namespace)
        self._settings = ConnectionSettings(urls=(url,))
        self.stack = AsyncExitStack()
        self.client: Client
        self.gang: Gang
        self.running: Job
        self.queued: Job
        self.dead: Job
        self.filled = False
        self.go_on = asyncio.Event()

    def pool(self, name: str, slots: int) -> Pool:
        pool = Pool(name, slots=slots)

        @pool.task
        async def wait() -> None:
            await asyncio.Event().wait()

        @pool.task
        async def fail(number: int) -> None:
            raise ValueError(f"cannot read line {number}")

        @pool.task
        async def wait_as_last_rank() -> None:
            gang = current_task().gang
            assert gang is not None
            if gang.rank == gang.world_size - 1:
                await self.go_on.wait()

        return pool

    async def bus(self, name: str):
        bus = await connect_bus(self._settings, name=name)
        self.stack.push_async_callback(bus.close)
        return bus

    async def worker(self, name: str, pool: str = "words", slots: int = 4) -> Worker:
        settings = WorkerSettings(id=name, drain_grace_s=0.2, history=HISTORY)
        worker = Worker(self.pool(pool, slots), bus=await self.bus(name), names=self.names, settings=settings)
        return await self.stack.enter_async_context(worker)

    async def coordinator(self) -> Coordinator:
        coordinator = Coordinator(
            bus=await self.bus("coordinator"), names=self.names, shell=ServiceSettings(history=HISTORY)
        )
        return await self.stack.enter_async_context(coordinator)

    async def fill(self, *, coordinator: bool = True) -> None:
        self.filled = True
        for name in ("w1", "w2"):
            await self.worker(name)
        await self.worker("l1", "letters", 2)
        if coordinator:
            await (await self.coordinator()).wait_leading()
        await self.stack.enter_async_context(
            Dispatcher(await self.bus("dispatcher"), names=self.names, settings=DispatcherSettings(history=HISTORY))
        )
        settings = RouterSettings(claim_s=300.0)  # browsers may keep this process from renewing for some seconds
        client = Client(await self.bus("client"), names=self.names, name="ann", settings=settings)
        self.client = await self.stack.enter_async_context(client)
        lease = await self.stack.enter_async_context(client.lease("words", slots=2, ttl_s=600))
        await until(self._led)
        self.gang = await self.stack.enter_async_context(client.gang(pool="letters", size=1, ttl_s=600))
        with pytest.raises(GangFailed):  # so that its rank has run something
            await self.gang.run("fail", 7)
        self.running = await client.submit("words.wait")
        self.dead = await client.options(max_attempts=1).submit("letters.fail", 7)
        await client.set_route("paused", {"to": {"letters": 1}, "queue": {"paused": True}})
        self.queued = await client.submit("paused.wait")
        await client.options(cron="0 0 3 1 1 *", idempotency_key="yearly").submit("words.wait")
        record = b'{"gangs": 0, "gang": {"pool": "letters", "size": 1}}'
        await (await client.router.ledger()).put(self.names.gangset_key("serving"), record)

        async def dead():
            return await client.dead_letters()

        async def scheduled():
            return await client.schedules()

        async def running():
            return (await self.running.status()).state == "running"

        await until(dead)
        await until(scheduled)
        await until(running)
        assert lease.lost is None, lease.lost
        # Last: from now on it keeps every free slot of the pool for itself.
        waiting = asyncio.create_task(self._wait_for_a_large_gang(), name="large gang")
        self.stack.push_async_callback(_cancelled, waiting)

        async def queued() -> bool:
            if waiting.done():
                waiting.result()
            return any(gang.state == "queued" for gang in await self._gangs())

        await until(queued)

    async def queued_gang(self, priority: int) -> str:
        """The id of the gang of this priority that waits, once it does."""
        found: list[str] = []

        async def queued() -> bool:
            gangs = await self._gangs()
            found[:] = [gang.id for gang in gangs if gang.state == "queued" and gang.priority == priority]
            return bool(found)

        await until(queued)
        return found[0]

    async def _gangs(self) -> Sequence[GangReply]:
        """None while nobody leads: a coordinator that had no CPU for a while has to be elected again."""
        asked = self.client.router.gangs.coordinator_client
        with contextlib.suppress(NoCoordinator):
            return (await asked.ask_for(GangListReply, GangOperation.LIST, GangListRequest(), PATIENCE_S)).gangs
        return ()

    async def _led(self) -> bool:
        coordinator = self.client.router.gangs.coordinator_client
        with contextlib.suppress(GanglineError):
            await coordinator.ask_for(GangListReply, GangOperation.LIST, GangListRequest(), 1.0)
            return True
        return False

    async def _wait_for_a_large_gang(self) -> None:
        async with self.client.gang(pool="words", size=2, slots=4, ttl_s=600):
            pass

    async def __aenter__(self) -> PopulatedSystem:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel it; raises its error if it has failed before."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def site(nats_url: str, namespace: str) -> PopulatedSystem:
    return PopulatedSystem(nats_url, namespace)


@asynccontextmanager
async def console(
    site: PopulatedSystem, served: ServedConsole, *, actions: str = "all"
) -> AsyncIterator[tuple[Page, Visitor]]:
    """The system, unless it runs already, and a console with a browser that has signed in, at the first page."""
    async with AsyncExitStack() as stack:
        if not site.filled:
            await stack.enter_async_context(site)
            await site.fill()
        visitor = await stack.enter_async_context(served.open(site.options, operator=site.options, actions=actions))
        browser = await stack.enter_async_context(chromium())
        page = await browser.page()
        await page.size(1440, 900)
        await page.open(f"http://127.0.0.1:{visitor.port}{served.link()}")
        await page.until_text("live", within=".live")
        await page.until("document.querySelector('main h1')")
        yield page, visitor


# -- pages ------------------------------------------------------------------------------------------------------------

PAGES = {
    "": ("words", "w1", "w2", "letters", "ann"),
    "waits": ("2 members", "paused", "its route pauses it", "is queued, number 1 in the queue", "if not renewed"),
    "pools": ("words", "letters"),
    "pools/words": ("Pool words", "w1", "w2", "serving"),
    "worker/words.w1": ("words.w1", "fail, wait", "Leases"),
    "leases": ("words.w", "ann", "held"),
    "gangs": ("formed", "queued", "letters"),
    "gangs/{gang}": ("{gang}", "letters.l1", "Members", "Time of each rank", "What happened"),
    "sets": ("serving", "1 member"),
    "sets/serving": ("Set serving", "Its gangs"),
    "queues": ("paused", "its route pauses it"),
    "jobs": ("words.wait", "running", "paused.wait", "queued", "letters.fail", "dead"),
    "jobs/{running}": ("words.wait", "running"),
    "jobs/{dead}": ("letters.fail", "cannot read line 7", "Traceback"),
    "schedules": ("yearly", "words.wait", "0 0 3 1 1 *", "active"),
    "dead": ("1 task", "letters.fail", "cannot read line #"),
    "routes": ("paused", "letters 100%"),
    "routes/paused": ("Route paused", "Change"),
    "events": ("Events",),
    "history": ("Who held slots then", "gang formed"),
    "system": ("leading", "Dispatchers", "version"),
}


def test_every_page_of_the_console_is_here():
    from gangline.console.app import STATIC

    script = (STATIC / "app.js").read_text()
    listed = script.partition("const PAGES = [")[2].partition("];")[0]
    named = {line.split("'")[1] for line in listed.splitlines() if "'" in line}
    assert named == {path.partition("/")[0] for path in PAGES} - {"worker"}


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_shows_its_rows_without_errors_and_fits_into_wide_and_narrow_windows(site, served, path):
    async with console(site, served) as (page, _):
        ids = {"gang": site.gang.id, "running": site.running.id, "dead": site.dead.id}
        assert await page.run("location.search") == "", "the token of the link is not in the address"
        await page.go(path.format(**ids))
        for text in PAGES[path]:
            await page.until_text(text.format(**ids))
        for width in (1440, 390):
            for dark in (False, True):
                await page.size(width, 900, dark=dark)
                assert await page.run("document.documentElement.scrollWidth") <= width
        assert page.errors == []


async def test_pages_about_what_is_not_there_say_so(site, served):
    async with console(site, served) as (page, _):
        for path, text in {
            "worker/words.w9": "No worker of that name is registered.",
            "gangs/nothing": "There is no such gang",
            "lease/~nothing": "It has ended.",
            "jobs/words.nothing": "words.nothing",
        }.items():
            await page.go(path)
            await page.until_text(text)
        assert all("404" in error for error in page.errors), page.errors


async def test_a_page_says_that_it_loads_until_there_is_something_to_show(site, served):
    async with console(site, served) as (page, visitor):
        # A browser in which the stream of the board never begins.
        await page.send(
            "Page.addScriptToEvaluateOnNewDocument", source="window.EventSource = class { addEventListener() {} }"
        )
        await page.open(f"http://127.0.0.1:{visitor.port}/#/pools")
        await page.send("Page.reload")
        await page.until_text("Loading")
        assert "No pools" not in await page.text()


FORMED = "[...document.querySelectorAll('main .state')].filter((e) => e.innerText === 'formed').length"
"""Number of formed gangs that are shown."""

# -- live -------------------------------------------------------------------------------------------------------------


async def test_what_changes_is_shown_without_a_reload(site, served):
    async with console(site, served) as (page, _):
        await page.run("window.same = true")
        await page.go("leases")
        async with site.client.lease("letters", slots=1, ttl_s=600) as lease:
            shown = f"document.querySelector('main').innerHTML.includes('{public_id(lease.token)}')"
            await page.until(shown)
        await page.until(f"!{shown}")
        await page.go("pools")
        await site.worker("s1", "syllables", 1)
        await page.until_text("syllables")
        await page.go("routes")
        await site.client.set_route("verses", {"to": {"words": 1, "letters": 1}})
        await page.until_text("letters 50%")
        await page.go("dead")
        await site.client.options(max_attempts=1).submit("letters.wait", 8)
        await page.until_text("letters.wait")
        await page.go("jobs")
        new = await site.client.submit("paused.wait")
        await page.until(f"document.querySelector('main').innerHTML.includes('{new.id}')")
        await page.go("gangs")
        await page.until(f"{FORMED} === 1")
        async with site.client.gang(pool="syllables", size=1, ttl_s=600):
            await page.until(f"{FORMED} === 2")
        assert await page.run("window.same") is True
        assert page.errors == []


async def test_a_worker_that_is_gone_is_described(site, served):
    async with console(site, served) as (page, _):
        worker = await site.worker("s1", "syllables", 3)
        await page.go("worker/syllables.s1")
        await page.until_text("fail, wait")
        await worker.stop()
        await page.until_text("gone", "last seen", "fail, wait")
        assert "No worker of that name" not in await page.text("main")
        await page.until_text("worker left")
        assert [error for error in page.errors if "503" not in error] == []


async def test_jobs_are_found_by_state_endpoint_and_the_beginning_of_their_id(site, served):
    async with console(site, served) as (page, _):
        await page.go("jobs")
        await page.until("document.querySelectorAll('tbody tr').length === 3")
        await page.enter("select[aria-label=state]", "queued")
        await page.until("document.querySelectorAll('tbody tr').length === 1")
        await page.until_text("paused.wait")
        await page.enter("select[aria-label=state]", "")
        await page.enter("select[aria-label=endpoint]", "words")
        await page.until("document.querySelectorAll('tbody tr').length === 1")
        begun = site.running.id[: len("words.") + 10]
        await page.enter('input[aria-label="job id"]', begun)
        await page.run("document.querySelector('form.find').requestSubmit()")
        await page.until(f"location.hash === '#/jobs/{site.running.id}'")
        await page.until_text("running")


# -- why, when, and how long ------------------------------------------------------------------------------------------

WHEN = "document.querySelector('.why.when')"


async def test_when_a_gang_can_start_is_told_while_it_waits(site, served):
    async with console(site, served) as (page, _):
        await site.worker("s1", "syllables", 2)
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(site.client.lease("syllables", slots=2, ttl_s=600))
            wanted = site.client.gang(pool="syllables", size=2, priority=7, ttl_s=600)
            waits = asyncio.create_task(stack.enter_async_context(wanted))
            id = await site.queued_gang(7)
            await page.go(f"gangs/{id}")
            await page.until_text("When it can start")
            held = f"syllables.s1: lease {public_id(lease.token)[:7]} (ann) ends in"
            await page.until_text("if nobody renews", "no later than", held, within=".why.when")
            lease.release()
            await waits
            await page.until_text("Members")
            await page.until(f"!{WHEN}")
        assert page.errors == []


async def test_when_a_job_can_start_is_told_while_it_waits_for_slots_and_while_it_waits_for_its_turn(site, served):
    async with console(site, served) as (page, _):
        await site.worker("s1", "syllables", 1)
        tasks = site.client.options(timeout_s=500, max_attempts=1, key="u7", ordered=True)
        first = await tasks.submit("syllables.wait")

        async def runs() -> bool:
            return (await first.status()).state == "running"

        await until(runs)
        other = await site.client.options(timeout_s=500, max_attempts=1).submit("syllables.wait")
        second = await tasks.submit("syllables.wait")
        await page.go(f"jobs/{other.id}")
        await page.until_text("When it can start")
        await page.until_text("no later than", "syllables.s1: syllables.wait ends in", within=".why.when")
        await page.go(f"jobs/{second.id}")
        in_order = "Tasks of key 'u7' run in order"
        await page.until_text("its turn comes no later than", in_order, within=".why.when")
        await first.cancel()
        await other.cancel()
        await page.until(f"!{WHEN}")
        await page.until_text("running")
        assert page.errors == []


async def test_the_slowest_rank_of_a_gang_is_marked(site, served):
    async with console(site, served) as (page, _):
        for name in ("s1", "s2"):
            await site.worker(name, "syllables", 1)
        async with site.client.gang(pool="syllables", size=2, ttl_s=600) as gang:
            running = asyncio.create_task(gang.run("wait_as_last_rank"))
            await page.go(f"gangs/{gang.id}")
            await page.until_text("Time of each rank")
            site.go_on.set()
            await running
            rows = "[...document.querySelectorAll('main .slowest')].map((e) => e.closest('tr').innerText)"
            shown = "rows[0].startsWith('1') && rows[0].includes('syllables.s') && rows[0].includes('slowest')"
            await page.until(f"((rows) => rows.length === 1 && {shown})({rows})")
            await page.until_text("slowest in this generation: rank 1 on syllables.s")
        assert page.errors == []


# -- actions ----------------------------------------------------------------------------------------------------------


async def act(page: Page, button: str, within: str = "main", **fields: object) -> None:
    """Press a button; check that a reason is required; give one, and go on."""
    await page.click(button, within)
    await page.until("document.querySelector('dialog').open")
    await page.run("document.querySelector('dialog form').requestSubmit()")
    assert await page.run("document.querySelector('dialog').open"), "a reason is required"
    for name, value in {"reason": "a browser test", **fields}.items():
        await page.run(f"document.querySelector('dialog input[name={name}]').value = '{value}'")
    await page.run("document.querySelector('dialog form').requestSubmit()")
    await page.until("!document.querySelector('dialog').open")


async def test_resize(site, served):
    async with console(site, served) as (page, _):
        await page.go("worker/words.w2")
        await act(page, "Resize", slots=6)
        await page.until_text("6:")
        assert (await site.client.stats("words.w2")).load.total == 6
        await recorded(page, "resize", "words.w2")


async def test_drain(site, served):
    async with console(site, served) as (page, _):
        await page.go("worker/words.w2")
        await act(page, "Drain", grace_s=0)

        async def gone():
            return "words.w2" not in [worker.name for worker in await site.client.workers()]

        await until(gone)
        await page.until_text("This worker has left.")
        await recorded(page, "drain", "words.w2")


async def test_cancel(site, served):
    async with console(site, served) as (page, _):
        await page.go(f"jobs/{site.queued.id}")
        await act(page, "Cancel")
        await page.until_text("cancelled")
        assert (await site.queued.status()).state == "cancelled"
        await recorded(page, "cancel", site.queued.id)


async def test_release(site, served):
    async with console(site, served) as (page, _):
        await page.go(f"gangs/{site.gang.id}")
        await act(page, "End")
        await page.until_text("ended")
        await until(lambda: site.gang.lost is not None)
        await recorded(page, "gang rm", site.gang.id)


@pytest.mark.parametrize("where", ["dead", "jobs/{dead}"])
async def test_replay(site, served, where):
    async with console(site, served) as (page, _):
        before = (await site.client.dead_letter(site.dead.id)).dead_at
        await page.go(where.format(dead=site.dead.id))
        await act(page, "Replay" if where == "dead" else "Run again")

        async def again():
            letters = await site.client.dead_letters()
            return [each for each in letters if each.dead_at > before]

        await until(again)
        await recorded(page, "dead replay", site.dead.id)


async def test_drop(site, served):
    async with console(site, served) as (page, _):
        await page.go("dead")
        await act(page, "Drop")
        await page.until_text("No dead letters.")
        assert await site.client.dead_letters() == []
        await recorded(page, "dead rm", site.dead.id)


async def test_a_route_is_set_after_its_difference_was_shown(site, served):
    async with console(site, served) as (page, _):
        await page.go("routes/paused")
        await page.until("document.querySelector('textarea').value.includes('paused')")
        await page.enter("textarea", '{"to": {"words": 1}}')
        await page.until("document.querySelector('.diff .plus').innerText.includes('words')")
        await act(page, "Set this route")
        await page.until_text("words 100%")
        assert (await site.client.routes())["paused"].to == {"words": 1.0}
        await recorded(page, "route set", "paused")


async def test_a_queue_is_resumed(site, served):
    async with console(site, served) as (page, _):
        await page.go("queues/paused")
        await act(page, "Resume")

        async def runs():
            return (await site.queued.status()).state == "running"

        await until(runs)
        await recorded(page, "route set", "paused")


async def test_scale(site, served):
    async with console(site, served) as (page, _):
        await page.go("sets")
        await act(page, "Scale", gangs=1)
        await page.until_text("1/1")
        await recorded(page, "gangset scale", "serving")


async def test_a_schedule_is_paused_resumed_and_removed(site, served):
    async with console(site, served) as (page, _):
        (schedule,) = await site.client.schedules()
        await page.go("schedules")
        await act(page, "Pause")
        await page.until_text("paused")
        assert (await site.client.schedule("yearly")).paused
        await act(page, "Resume")
        await page.until_text("active")
        assert not (await site.client.schedule("yearly")).paused
        await act(page, "Remove")
        await page.until_text("No schedules.")
        assert await site.client.schedules() == []
        for change in ("pause", "resume", "rm"):
            await recorded(page, f"schedules {change}", schedule.id)


async def recorded(page: Page, action: str, target: str) -> None:
    """The page System shows the action, its end and its reason, and the audit trail has them."""
    await page.go("system")
    texts = json.dumps([action, target, AuditStage.DONE.value, "a browser test"])
    rows = "[...document.querySelectorAll('main tr')]"
    await page.until(f"{rows}.some((row) => {texts}.every((text) => row.innerText.includes(text)))")
    assert page.errors == []


async def test_every_action_has_a_test_here():
    from gangline.console.settings import ACTIONS

    tested = {"resize", "drain", "cancel", "release", "replay", "drop", "route", "scale", "schedule"}
    assert set(ACTIONS) == tested


async def test_what_is_refused_is_told_in_the_dialog_and_nothing_is_done(site, served):
    async with console(site, served) as (page, _):
        await page.go("routes/paused")
        await page.until("document.querySelector('textarea').value.includes('paused')")
        await page.enter("textarea", '{"too": 1}')
        await page.click("Set this route", "main")
        await page.until("document.querySelector('dialog').open")
        await page.run("document.querySelector('dialog input[name=reason]').value = 'a mistake'")
        await page.run("document.querySelector('dialog form').requestSubmit()")
        await page.until_text("too", within="dialog .error")
        assert (await site.client.routes())["paused"].queue.paused
        await page.click("Leave it", "dialog")
        await page.until("!document.querySelector('dialog').open")


async def test_a_console_that_only_shows_has_no_buttons_for_actions(site, served):
    async with console(site, served, actions="") as (page, _):
        for path in (
            "worker/words.w1",
            f"gangs/{site.gang.id}",
            "sets",
            "queues",
            "schedules",
            "dead",
            "routes/paused",
        ):
            await page.go(path)
            await page.until("document.querySelector('main h1')")
            assert await page.run("document.querySelectorAll('main .act').length") == 0, path


# -- accidents --------------------------------------------------------------------------------------------------------


async def test_a_leader_that_is_killed_is_seen_to_go_and_its_successor_to_come(
    site: PopulatedSystem, served: ServedConsole, nats_url: str, namespace: str, forks: ForkServer
):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "OTEL_", "GANGLINE_"))}
    environment = clean | {"NATS_URL": nats_url, "GANGLINE_NAMESPACE": namespace}
    async with site:
        leader = forks.start(["-m", "gangline.cli", "coordinator"], environment=environment)
        site.stack.callback(leader.wait)
        site.stack.callback(leader.kill)
        await site.fill(coordinator=False)
        standby = await site.coordinator()
        async with console(site, served) as (page, _):
            await page.until_text("leader since", within=".leader")
            first = await page.text(".leader")
            await page.go(f"gangs/{site.gang.id}")
            await page.until_text("formed")
            leader.send_signal(signal.SIGKILL)
            await standby.wait_leading()
            await page.until(f"!['{first}', 'no leader'].includes(document.querySelector('.leader').innerText)")
            await page.until_text("formed")
            await page.go("gangs")
            async with site.client.gang(pool="letters", size=1, ttl_s=600):
                await page.until(f"{FORMED} === 2")
            assert page.errors == []


async def test_a_page_is_marked_stale_when_the_console_stops_and_signed_out_by_the_next(site, served):
    async with site, chromium() as browser:
        await site.worker("w1")
        page = await browser.page()
        async with served.open(site.options) as visitor:
            port = visitor.port
            await page.open(f"http://127.0.0.1:{port}{served.link()}")
            await page.until_text("words")
        await page.until("document.querySelector('main.stale')")
        await page.until_text("does not answer", within=".notice")
        await page.until_text("words")  # what was known is still shown
        async with served.open(site.options, listen=f"127.0.0.1:{port}"):
            await page.until_text("Signed out", within=".notice")


async def test_a_page_is_marked_stale_when_the_server_stops_and_goes_on_when_it_is_back(nats_server, namespace, served):
    async with PopulatedSystem(nats_server.url, namespace) as site:
        site.filled = True
        await site.worker("w1")
        async with console(site, served) as (page, _):
            await page.until_text("w1")
            await asyncio.to_thread(nats_server.kill)
            await page.until_text("no connection to NATS", within=".notice")
            await page.until("document.querySelector('main.stale')")
            await asyncio.to_thread(nats_server.start)
            await page.until("document.querySelector('main') && !document.querySelector('main.stale')")
            await page.until_text("w1")
