"""What both buses promise about large values."""

from __future__ import annotations

import os

import pytest

from gangline.bus.port.bus import BucketSettings, Storage, StorageUnavailable
from gangline.schemas.errors.base import InvalidName

from ...support.rows import in_rows
from ...waiting import until


@pytest.fixture
async def open_store(connect, namespace):
    """Open this test's object store over a connection of its own; with its stream."""

    async def open_one():
        bus = await connect()
        return await bus.object_store(namespace, BucketSettings(storage=Storage.MEMORY))

    return open_one


@pytest.fixture
async def store(open_store):
    return await open_store()


@in_rows("size", [0, 1, 131_071, 131_072, 131_073, 1_000_000])
async def test_a_value_of_any_size_comes_back_whole(open_store, size):
    one, two = await open_store(), await open_store()
    data = os.urandom(size)
    await one.put("results/1 of many, ümläut", data)
    assert await two.get("results/1 of many, ümläut") == data
    assert await two.get("other") is None


async def test_putting_again_replaces_and_leaves_nothing_behind(store):
    for size in (400_000, 10, 300_000):
        await store.put("a", bytes(size))
        assert await store.get("a") == bytes(size)
    state = await store.stream.state(">")
    assert sorted(state.subjects.values()) == [1, 3]  # the description, and three pieces


async def test_a_deleted_value_is_gone_and_may_be_deleted_twice(store):
    await store.put("a", b"1" * 300_000)
    await store.delete("a")
    await store.delete("a")
    await store.delete("never")
    assert await store.get("a") is None
    assert (await store.stream.state()).messages == 1  # what says that it is gone, as `nats object` writes it
    await store.put("a", b"2")
    assert await store.get("a") == b"2"


async def test_a_value_expires_with_its_pieces(store):
    await store.put("brief", b"1" * 200_000, ttl_s=1)
    await store.put("lasting", b"2")

    async def gone():
        return await store.get("brief") is None

    await until(gone, pause_s=0.1)
    assert await store.get("lasting") == b"2"

    async def nothing_left():
        return (await store.stream.state()).messages == 2

    await until(nothing_left, pause_s=0.1)


async def test_a_value_that_lost_a_piece_is_not_given_out(store):
    await store.put("a", b"1" * 300_000)
    assert await store.stream.delete(2)
    with pytest.raises(StorageUnavailable, match="cannot be read whole"):
        await store.get("a")


async def test_a_value_that_is_replaced_in_the_middle_of_every_read_is_read_when_its_writer_rests(
    open_store, monkeypatch
):
    writer, reader = await open_store(), await open_store()
    versions = [bytes([number]) * 300_000 for number in range(8)]
    await writer.put("a", versions[0])
    read_piece, rest = reader.stream.next, iter(versions[1:])

    async def replaced_meanwhile(subject, sequence=1):
        if sequence > 1 and (version := next(rest, None)) is not None:
            await writer.put("a", version)
        return await read_piece(subject, sequence)

    monkeypatch.setattr(reader.stream, "next", replaced_meanwhile)
    assert await reader.get("a") == versions[-1]


async def test_names_have_bounds(store, connect):
    for name in ("", "x" * 513):
        with pytest.raises(InvalidName):
            await store.put(name, b"")
    with pytest.raises(InvalidName):
        await (await connect()).object_store("a.b", BucketSettings())
