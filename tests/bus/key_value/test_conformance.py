"""What both buses promise about buckets."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import BucketSettings, Conflict, KvEntry, KvOperation, KvWrite
from gangline.schemas.errors.base import ClosedError, InvalidName, InvalidRequest, PayloadTooLarge, Unavailable

from ...support.rows import in_rows
from ..conftest import collect


@pytest.fixture
def namespace(namespace):
    """Also the name of a bucket that takes atomic batches, as the ledger does."""
    return f"{namespace}_LEDGER"


@pytest.fixture
async def open_bucket(connect, namespace):
    """Open this test's bucket over a connection of its own."""

    async def open_one():
        return await (await connect()).bucket(namespace, BucketSettings())

    return open_one


@pytest.fixture
async def bucket(open_bucket):
    return await open_bucket()


def put(key, value, revision):
    return KvEntry(key=key, value=value, revision=revision)


def gone(entry):
    return entry.operation is KvOperation.DELETE


async def test_what_was_put_is_read_from_every_connection(open_bucket):
    one, two = await open_bucket(), await open_bucket()
    revision = await one.put("a.b", b"value")
    assert revision > 0
    assert await two.get("a.b") == put("a.b", b"value", revision)
    assert await two.get("a.c") is None


async def test_a_put_replaces_and_its_revision_grows_over_the_whole_bucket(bucket):
    first, other, second = await bucket.put("a", b"1"), await bucket.put("b", b"1"), await bucket.put("a", b"2")
    assert first < other < second
    assert await bucket.get("a") == put("a", b"2", second)


async def test_values_may_be_empty_and_binary(bucket):
    await bucket.put("empty", b"")
    await bucket.put("binary", bytes(range(256)))
    assert (await bucket.get("empty")).value == b""
    assert (await bucket.get("binary")).value == bytes(range(256))
    assert {entry.key: entry.value for entry in await bucket.entries(">")} == {
        "empty": b"",
        "binary": bytes(range(256)),
    }


async def test_a_bucket_that_is_only_read_is_not_made_until_the_first_write(connect, namespace, seen):
    reader, writer = await connect(), await connect()
    read = await reader.bucket(namespace, BucketSettings(), make=False)
    await read.observe("*", seen)
    assert await read.entries("*") == []
    assert await read.get("a") is None
    written = await writer.bucket(namespace, BucketSettings())
    await reader.flush()
    revision = await written.put("a", b"1")
    assert [entry.key for entry in await seen.count(1)] == ["a"]
    assert await read.entries("*") == [put("a", b"1", revision)]
    assert await (await reader.bucket(namespace, BucketSettings())).get("a") == put("a", b"1", revision)


async def test_a_watch_of_a_bucket_that_is_only_read_does_not_make_it_and_sees_it_when_others_do(connect, namespace):
    reader, writer = await connect(), await connect()
    read, seen = await reader.bucket(namespace, BucketSettings(), make=False), collect()
    watch = await read.watch("*", seen)
    with pytest.raises(Unavailable, match="stream not found"):
        await reader.api.call(f"STREAM.INFO.KV_{namespace}", what="look")
    revision = await (await writer.bucket(namespace, BucketSettings())).put("a", b"1")
    assert await seen.count(1) == [put("a", b"1", revision)]
    await watch.unsubscribe()


async def test_a_bucket_opened_twice_is_one_bucket(connect, namespace):
    bus = await connect()
    one = await bus.bucket(namespace, BucketSettings())
    two = await bus.bucket(namespace, BucketSettings(max_bytes=1 << 20))
    await one.put("a", b"1")
    assert (await two.get("a")).value == b"1"
    assert one.name == two.name == namespace


# -- conditions ---------------------------------------------------------------------------------------------------


async def test_revision_zero_writes_only_what_does_not_exist(bucket):
    revision = await bucket.put("a", b"1", revision=0)
    with pytest.raises(Conflict) as caught:
        await bucket.put("a", b"2", revision=0)
    assert not caught.value.may_have_started
    assert await bucket.get("a") == put("a", b"1", revision)


async def test_a_put_at_a_revision_needs_just_that_one(bucket):
    first = await bucket.put("a", b"1")
    second = await bucket.put("a", b"2", revision=first)
    with pytest.raises(Conflict):
        await bucket.put("a", b"3", revision=first)
    with pytest.raises(Conflict):
        await bucket.put("never", b"3", revision=first)
    assert await bucket.get("a") == put("a", b"2", second)


async def test_of_many_who_put_at_one_revision_one_wins(open_bucket):
    one, two = await open_bucket(), await open_bucket()
    first = await one.put("a", b"0")
    results = await asyncio.gather(
        *((one, two)[number % 2].put("a", str(number).encode(), revision=first) for number in range(20)),
        return_exceptions=True,
    )
    won = [number for number, result in enumerate(results) if isinstance(result, int)]
    assert len(won) == 1
    assert all(isinstance(result, int | Conflict) for result in results)
    assert await two.get("a") == put("a", str(won[0]).encode(), results[won[0]])


async def test_a_deleted_key_does_not_exist_and_can_be_made_again(bucket):
    await bucket.put("a", b"1")
    await bucket.delete("a")
    assert await bucket.get("a") is None
    assert await bucket.entries(">") == []
    again = await bucket.put("a", b"2", revision=0)
    assert await bucket.get("a") == put("a", b"2", again)


async def test_deleting_what_does_not_exist_is_fine(bucket):
    await bucket.delete("never")
    await bucket.delete("never")
    assert await bucket.get("never") is None


async def test_a_delete_at_a_revision_needs_just_that_one(bucket):
    first = await bucket.put("a", b"1")
    second = await bucket.put("a", b"2")
    with pytest.raises(Conflict):
        await bucket.delete("a", revision=first)
    assert await bucket.get("a") == put("a", b"2", second)
    await bucket.delete("a", revision=second)
    assert await bucket.get("a") is None


# -- expiry -------------------------------------------------------------------------------------------------------


async def test_a_key_expires_and_watchers_hear_of_it(bucket, seen):
    await bucket.watch("a", seen)
    await bucket.put("a", b"1", ttl_s=1)
    await bucket.put("b", b"1")
    await seen.until(lambda entries: entries and gone(entries[-1]))
    assert [entry.operation for entry in seen.items] == [KvOperation.PUT, KvOperation.DELETE]
    assert seen.items[-1].key == "a"
    assert await bucket.get("a") is None
    assert [entry.key for entry in await bucket.entries(">")] == ["b"]


async def test_an_expired_key_can_be_made_again_as_if_it_had_never_been(bucket, seen):
    await bucket.watch("a", seen)
    first = await bucket.put("a", b"1", ttl_s=0.2)
    await seen.until(lambda entries: entries and gone(entries[-1]))
    with pytest.raises(Conflict):
        await bucket.put("a", b"2", revision=first)
    second = await bucket.put("a", b"2", revision=0)
    assert await bucket.get("a") == put("a", b"2", second)


async def test_renewing_a_key_puts_its_end_off_and_writing_without_ttl_makes_it_permanent(bucket, seen):
    await bucket.watch(">", seen)
    # Sent together: one after the other, they might take longer than a second on a busy machine.
    await bucket.write(
        [
            KvWrite(key="renewed", value=b"1", ttl_s=1),
            KvWrite(key="permanent", value=b"1", ttl_s=1),
            KvWrite(key="permanent", value=b"2"),
            KvWrite(key="renewed", value=b"2", ttl_s=60),
            KvWrite(key="witness", value=b"1", ttl_s=1),
        ]
    )
    await seen.until(lambda entries: any(gone(entry) for entry in entries))
    assert [entry.key for entry in seen.items if gone(entry)] == ["witness"]
    assert {entry.key for entry in await bucket.entries(">")} == {"renewed", "permanent"}


# -- snapshots ----------------------------------------------------------------------------------------------------


async def test_a_snapshot_has_the_newest_of_each_living_key_that_matches(bucket):
    await bucket.put("a.x", b"old")
    await bucket.put("a.y", b"1")
    await bucket.put("b.x", b"1")
    await bucket.put("a.x.z", b"1")
    await bucket.put("a.w", b"1")
    await bucket.delete("a.w")
    newest = await bucket.put("a.x", b"new")
    found = {entry.key: entry for entry in await bucket.entries("a.*")}
    assert set(found) == {"a.x", "a.y"}
    assert found["a.x"] == put("a.x", b"new", newest)
    assert {entry.key for entry in await bucket.entries("a.>")} == {"a.x", "a.y", "a.x.z"}
    assert {entry.key for entry in await bucket.entries("*.x")} == {"a.x", "b.x"}
    assert {entry.key for entry in await bucket.entries("b.x")} == {"b.x"}
    assert {entry.key for entry in await bucket.entries("a.x.*", "b.*", "none.>")} == {"a.x.z", "b.x"}


async def test_a_snapshot_of_many_keys_is_complete(open_bucket):
    bucket, there = await open_bucket(), 0
    for number in (1, 1023, 1024, 1025, 2049):  # a page has 1024
        await bucket.write([KvWrite(key=f"k.{index}", value=b"%d" % index) for index in range(there, number)])
        found, there = await bucket.entries("k.*"), number
        assert {entry.key: entry.value for entry in found} == {f"k.{index}": b"%d" % index for index in range(number)}
        assert len(found) == number


async def test_a_snapshot_larger_than_one_message_is_complete(bucket):
    values = {f"k.{index}": bytes([index]) * 400_000 for index in range(12)}
    for key, value in values.items():
        await bucket.put(key, value)
    assert {entry.key: entry.value for entry in await bucket.entries(">")} == values


# -- many at once -------------------------------------------------------------------------------------------------


async def test_pipelined_writes_give_a_revision_or_an_error_for_each_in_order(bucket):
    standing = await bucket.put("standing", b"1")
    results = await bucket.write(
        [
            KvWrite(key="new", value=b"1", revision=0),
            KvWrite(key="standing", value=b"2", revision=0),
            KvWrite(key="standing", value=b"3", revision=standing),
            KvWrite(key="plain", value=b"1"),
            KvWrite(key="plain", value=None),
        ]
    )
    assert [isinstance(result, int) for result in results] == [True, False, True, True, True]
    assert isinstance(results[1], Conflict)
    assert {entry.key: entry.value for entry in await bucket.entries(">")} == {"new": b"1", "standing": b"3"}
    assert (await bucket.get("standing")).revision == results[2]


async def test_a_write_that_does_not_revive_leaves_what_was_deleted(bucket):
    for key in ("pipelined", "batched"):
        await bucket.put(key, b"1")
        await bucket.delete(key)
    results = await bucket.write(
        [
            KvWrite(key="pipelined", value=b"2", revision=0, revives=False),
            KvWrite(key="never", value=b"2", revision=0, revives=False),
        ]
    )
    assert [type(result) for result in results] == [Conflict, int]
    with pytest.raises(Conflict):
        await bucket.commit([KvWrite(key="batched", value=b"2", revision=0, revives=False)])
    assert [entry.key for entry in await bucket.entries(">")] == ["never"]


async def test_an_atomic_batch_writes_all(bucket):
    standing = await bucket.put("standing", b"1")
    await bucket.put("doomed", b"1")
    revision = await bucket.commit(
        [
            KvWrite(key="new", value=b"1", revision=0),
            KvWrite(key="doomed", value=None),
            KvWrite(key="standing", value=b"2", revision=standing),
        ]
    )
    assert await bucket.get("standing") == put("standing", b"2", revision)
    assert {entry.key for entry in await bucket.entries(">")} == {"new", "standing"}


async def test_one_failed_condition_refuses_the_whole_batch(bucket):
    await bucket.put("standing", b"1")
    for wrong in (0, 12345):
        with pytest.raises(Conflict):
            await bucket.commit(
                [
                    KvWrite(key="new", value=b"1"),
                    KvWrite(key="standing", value=b"2", revision=wrong),
                    KvWrite(key="last", value=b"1"),
                ]
            )
    assert {entry.key: entry.value for entry in await bucket.entries(">")} == {"standing": b"1"}


async def test_a_write_may_be_conditioned_on_another_key(bucket):
    leader = await bucket.put("leader", b"me")
    await bucket.commit(
        [
            KvWrite(key="gang", value=b"1", revision=leader, condition_key="leader"),
            KvWrite(key="member", value=b"1", revision=0, condition_key="absent"),
        ]
    )
    await bucket.put("leader", b"another")
    with pytest.raises(Conflict):
        await bucket.commit(
            [
                KvWrite(key="gang", value=b"2", revision=leader, condition_key="leader"),
                KvWrite(key="member", value=b"2"),
            ]
        )
    assert (await bucket.get("gang")).value == b"1"
    assert (await bucket.get("member")).value == b"1"


async def test_revision_zero_in_a_batch_passes_where_a_key_was_deleted_or_has_expired(bucket, seen):
    await bucket.watch("expired", seen)
    await bucket.put("expired", b"1", ttl_s=1)
    await bucket.put("deleted", b"1")
    await bucket.delete("deleted")
    await seen.until(lambda entries: entries and gone(entries[-1]))
    await bucket.commit(
        [KvWrite(key="expired", value=b"2", revision=0), KvWrite(key="deleted", value=b"2", revision=0)]
    )
    assert {entry.key: entry.value for entry in await bucket.entries(">")} == {"expired": b"2", "deleted": b"2"}


async def test_keys_written_by_a_batch_expire_too(bucket, seen):
    await bucket.watch(">", seen)
    await bucket.commit([KvWrite(key="brief", value=b"1", ttl_s=1), KvWrite(key="lasting", value=b"1")])
    await seen.until(lambda entries: any(gone(entry) for entry in entries))
    assert [entry.key for entry in await bucket.entries(">")] == ["lasting"]


@in_rows("size", [1, 1000])
async def test_a_batch_has_one_to_a_thousand_writes(bucket, size):
    revision = await bucket.commit([KvWrite(key=f"k.{index}", value=b"x") for index in range(size)])
    assert len(await bucket.entries(">")) == size
    assert (await bucket.get(f"k.{size - 1}")).revision == revision


@in_rows("size", [0, 1001])
async def test_a_batch_of_any_other_size_is_refused(bucket, size):
    with pytest.raises(InvalidRequest):
        await bucket.commit([KvWrite(key=f"k.{index}", value=b"x") for index in range(size)])
    assert await bucket.entries(">") == []


# -- following ----------------------------------------------------------------------------------------------------


async def test_a_watch_tells_what_is_there_before_it_returns_and_then_each_change(open_bucket, seen):
    one, two = await open_bucket(), await open_bucket()
    first = await one.put("a.x", b"1")
    await one.put("b.x", b"1")
    await one.put("a.gone", b"1")
    await one.delete("a.gone")
    await two.watch("a.*", seen)
    assert seen.items == [put("a.x", b"1", first)]
    second = await one.put("a.x", b"2")
    await seen.count(2)
    await one.delete("a.x")
    await one.put("b.y", b"1")
    third = await one.put("a.y", b"1")
    await seen.count(4)
    assert [(entry.key, entry.operation) for entry in seen.items[1:]] == [
        ("a.x", KvOperation.PUT),
        ("a.x", KvOperation.DELETE),
        ("a.y", KvOperation.PUT),
    ]
    assert seen.items[1].revision == second
    assert seen.items[3] == put("a.y", b"1", third)


async def test_a_watch_that_ended_tells_nothing_more(bucket):
    seen, witness = collect(), collect()
    watch = await bucket.watch(">", seen)
    await bucket.watch(">", witness)
    await watch.unsubscribe()
    await watch.unsubscribe()
    await bucket.put("a", b"1")
    await witness.count(1)
    assert seen.items == []


async def test_a_watch_handler_that_raises_is_logged_and_the_watch_goes_on(bucket, caplog, seen):

    def handler(entry):
        seen(entry)
        if entry.value == b"bad":
            raise ZeroDivisionError("planted")

    await bucket.watch(">", handler)
    await bucket.put("a", b"bad")
    await seen.count(1)
    await bucket.put("b", b"good")
    await seen.count(2)
    assert "planted" in caplog.text


async def test_a_watch_sees_the_last_value_of_a_key_that_changes_all_the_time(open_bucket, seen):
    one, two = await open_bucket(), await open_bucket()
    await two.watch("a", seen)
    for number in range(300):
        await one.put("a", str(number).encode())
    await seen.until(lambda entries: entries and entries[-1].value == b"299")
    revisions = [entry.revision for entry in seen.items]
    assert revisions == sorted(revisions)


async def test_observing_sees_writes_as_they_pass_without_revision_or_history(open_bucket, seen):
    one, two = await open_bucket(), await open_bucket()
    await one.put("alive.x", b"before")
    observing = await two.observe("alive.*", seen)
    await two.entries(">")  # a round trip: the subscription is known by now
    await one.put("alive.x", b"1", ttl_s=3)
    await one.put("other.x", b"1")
    await one.delete("alive.x")
    await seen.count(2)
    assert seen.items == [
        KvEntry(key="alive.x", value=b"1", revision=0),
        KvEntry(key="alive.x", value=b"", revision=0, operation=KvOperation.DELETE),
    ]
    await observing.unsubscribe()
    await one.put("alive.x", b"2")
    assert len(seen.items) == 2


# -- refusals -----------------------------------------------------------------------------------------------------


@in_rows("key", ["", ".a", "a.", "a..b", "a b", "a.*", ">", "a\nb"])
async def test_what_is_no_key_is_refused_by_every_operation(bucket, key):
    writes = [KvWrite(key=key, value=b"")]
    one_key = (bucket.get(key), bucket.put(key, b""), bucket.delete(key))
    for refused in (*one_key, bucket.write(writes), bucket.commit(writes)):
        with pytest.raises(InvalidName):
            await refused


@in_rows("pattern", ["", "a..*", "a.>.b", ".>", "a b"])
async def test_what_is_no_pattern_is_refused(bucket, pattern):
    for refused in (bucket.watch(pattern, print), bucket.observe(pattern, print), bucket.entries(pattern)):
        with pytest.raises(InvalidName):
            await refused


async def test_a_value_over_max_payload_is_refused_before_sending(connect, namespace):
    bus = await connect()
    bucket = await bus.bucket(namespace, BucketSettings())
    with pytest.raises(PayloadTooLarge):
        await bucket.put("a", b"x" * (bus.max_payload + 1))
    assert bus.connected
    assert await bucket.put("a", b"small") > 0


async def test_after_close_every_operation_says_so(connect, namespace):
    bus = await connect()
    bucket = await bus.bucket(namespace, BucketSettings())
    await bus.close()
    for refused in (bucket.get("a"), bucket.put("a", b""), bucket.entries(">")):
        with pytest.raises(ClosedError):
            await refused


async def test_the_keys_that_are_new_since_a_revision_are_told_without_their_values(bucket):
    first = await bucket.put("a.b", b"1")
    last = await bucket.put("c", b"1" * 100)
    assert await bucket.written(last, most=10) == (last, set())
    assert await bucket.written(first, most=10) == (last, {"c"})
    await bucket.put("a.b", b"2")
    await bucket.delete("c")
    again = await bucket.put("d", b"1")
    assert await bucket.written(first, most=10) == (again, {"a.b", "c", "d"})
    assert await bucket.written(first, most=3) == (again, None), "too many"
    assert await bucket.written(again + 1, most=10) == (again, None), "of another bucket"
