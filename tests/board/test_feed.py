"""The board on a running system: at rest it shows what workers and the coordinator have in their books."""

from __future__ import annotations

import asyncio

from gangline.board.board_core import Rows, Table, apply
from gangline.board.feed import SERVICES_S, BoardFeed, following
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.schemas.messages.gangs import GangListReply, GangListRequest
from gangline.schemas.names import GangOperation
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

POOL = Pool("train", slots=4)


@POOL.task
async def wait() -> None:
    await asyncio.Event().wait()


@POOL.task
async def fail() -> None:
    raise ValueError("no")


async def test_at_rest_the_board_shows_the_books_of_every_worker():
    running = cluster(POOL, workers=3, coordinator=True)
    async with running as client, following(BoardFeed(client)) as feed:
        feed.in_view = lambda: ["train.w1", "train.w2", "train.w3"]
        shown: Rows = {}
        apply(shown, feed.board.snapshot())
        feed.listen(lambda delta: apply(shown, delta))
        async with client.lease("train", slots=2) as lease, client.gang(pool="train", size=3, slots=1) as gang:
            task = asyncio.create_task(lease.call("wait"))
            asking = asyncio.ensure_future(client.gang(pool="train", size=3, slots=4).__aenter__())
            # Heartbeats come every second, and the coordinator keeps slots for the head of the queue after a while.
            await asyncio.sleep(20)
            for name, worker in running.workers.items():
                load, slots = worker.statistics().load, feed.board.slots[name]
                assert (slots.running, slots.reserved, slots.total) == (load.running, load.reserved, load.total)
                assert slots.free == load.total - load.running - load.reserved
            assert sum(slots.leased for slots in feed.board.slots.values()) == 2
            assert sum(slots.gang for slots in feed.board.slots.values()) == 3
            assert sum(slots.running for slots in feed.board.slots.values()) == 1
            kept = {
                cells.holder for slots in feed.board.slots.values() for cells in slots.cells if cells.kind == "kept"
            }
            (waiting,) = feed.board.rows[Table.WAITS].values()
            assert kept == {waiting["id"]} and waiting["reasons"]
            assert feed.board.rows[Table.GANGS][gang.id]["state"] == "formed"
            (row,) = feed.board.rows[Table.LEASES].values()
            assert row["slots"] == 2 and row["id"].startswith("~")
            assert shown == feed.board.rows
            asking.cancel()
            task.cancel()
        await asyncio.sleep(5)
        assert feed.board.rows[Table.LEASES] == {} == feed.board.rows[Table.WAITS]
        assert all(slots.free == slots.total for slots in feed.board.slots.values())
        assert feed.board.rows[Table.GANGS][gang.id]["state"] == "ended"
        assert shown == feed.board.rows


async def test_a_service_is_shown_when_it_answers_and_no_longer_when_it_has_missed_a_ping():
    def services(feed: BoardFeed) -> list[object]:
        feed.board.take()
        return [row["name"] for row in feed.board.rows[Table.SYSTEM].values() if row["kind"] == "service"]

    running = cluster(POOL, workers=1)
    async with running as client:
        gateway = Gateway(client.router.bus, names=client.router.names)
        async with following(BoardFeed(client, clock=asyncio.get_running_loop().time)) as feed:
            async with gateway:
                await asyncio.sleep(SERVICES_S + 1)
                assert services(feed) == ["gateway"]
                await asyncio.sleep(2 * SERVICES_S)
                assert services(feed) == ["gateway"]
            await asyncio.sleep(2 * SERVICES_S + 1)
            assert services(feed) == []


async def test_a_gang_that_is_queued_again_has_waited_since_then_and_not_since_its_request():
    running = cluster(POOL, workers=2, coordinator=True)
    async with running as client, following(BoardFeed(client)) as feed, client.gang(pool="train", size=2, slots=4):
        await asyncio.sleep(20)
        await running.workers["train.w2"].abort()
        await asyncio.sleep(15)
        feed.board.take()
        (row,) = feed.board.rows[Table.WAITS].values()
        listed = await client.router.gangs.coordinator_client.ask_for(
            GangListReply, GangOperation.LIST, GangListRequest(), 5.0
        )
        (gang,) = listed.gangs
        assert gang.state == "queued" and row["since"] == gang.queued_at > gang.created_at + 20
        assert feed.board.rows[Table.GANGS][gang.id]["state"] == "queued"


async def test_queues_jobs_dead_letters_and_routes_are_shown():
    running = cluster(POOL, dispatcher=True)
    async with running as client, following(BoardFeed(client)) as feed:
        await client.set_route("train", {"to": {"train": 1}, "queue": {"max_running": 2}})
        jobs = [await client.options(events=True).submit("train.wait") for _ in range(3)]
        dead = await client.submit("train.fail")
        await asyncio.sleep(10)
        board = feed.board
        assert board.rows[Table.ROUTES]["train"]["route"]["queue"] == {"max_running": 2}
        assert board.rows[Table.QUEUES]["train"]["running"] == 2
        assert board.rows[Table.WAITS]["queue:train"]["count"] >= 1
        assert {job.id for job in jobs} >= set(board.rows[Table.JOBS])
        assert board.rows[Table.SYSTEM]
        for job in jobs:
            await job.cancel()
        await asyncio.sleep(10)
        assert board.rows[Table.DEAD][dead.id]["reason"] == "failed"
        assert Table.WAITS.value not in {t for t, rows in board.rows.items() if rows} or not board.rows[Table.WAITS]


async def test_the_board_follows_on_when_the_server_comes_back():
    running = cluster(POOL)
    async with running as client, following(BoardFeed(client)) as feed:
        assert feed.connected
        running.hub.stop()
        await asyncio.sleep(1)
        assert not feed.connected
        running.hub.start()
        await asyncio.sleep(30)
        assert feed.connected
        assert feed.board.rows[Table.WORKERS]["train.w1"]["state"] == "serving"
