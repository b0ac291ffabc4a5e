"""Lists of a bucket that changes while it is listed. What a real server lists is in `test_conformance.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gangline.bus.jetstream.api import ApiError
from gangline.bus.key_value.snapshot import snapshot
from gangline.bus.key_value.wire import StoredEntry
from gangline.bus.port.bus import StorageUnavailable


class Server:
    """A bucket and its bus: keys and revisions, and what happens when the names of all keys have been told."""

    name = "bucket"
    stream = "KV_bucket"
    prefix = "$KV.bucket."
    timeout_s = 5.0
    made = False

    def __init__(self, keys: dict[str, int], then: Callable[[Server], None] = lambda server: None) -> None:
        self.bus = self.api = self
        self.keys = keys
        self._then = then
        self.refusals: list[ApiError] = []
        self.on_read: Callable[[Server], None] = lambda server: None
        self.reads = 0

    def check(self, found: Mapping[str, Any]) -> None:
        pass

    async def call(self, operation: str, query: Mapping[str, Any], *, what: str) -> dict[str, Any]:
        if self.refusals:
            raise self.refusals.pop()
        state = {
            "last_seq": max(self.keys.values(), default=0),
            "subjects": {self.prefix + key: 1 for key in self.keys},
        }
        self._then(self)
        return {"state": state}

    async def stored(self, key: str) -> StoredEntry | None:
        self.reads += 1
        self.on_read(self)
        revision = self.keys.get(key)
        return None if revision is None else StoredEntry(key=key, value=b"", revision=revision, headers={})


async def listed(server: Server) -> dict[str, int]:
    return {entry.key: entry.revision for entry in await snapshot(server, (">",))}  # type: ignore[arg-type]


async def test_a_list_ends_while_keys_change_faster_than_they_are_read() -> None:
    server = Server({f"alive.{number}": number + 1 for number in range(100)})
    beat = itertools.cycle(sorted(server.keys))
    revisions = itertools.count(101)

    def change(server: Server) -> None:
        server.keys[next(beat)] = next(revisions)

    server.on_read = change
    assert len(await listed(server)) == 100
    assert server.reads <= 100


async def test_what_went_while_it_was_listed_is_not_in_the_list() -> None:
    assert await listed(Server({"a": 1, "b": 2}, lambda server: server.keys.clear())) == {}


async def test_a_list_waits_for_a_leader_and_a_bucket_that_is_gone_is_empty() -> None:
    server = Server({"a": 1})
    server.refusals = [ApiError("list", {"code": 503, "err_code": 10008})]
    assert await listed(server) == {"a": 1}
    server.refusals = [ApiError("list", {"code": 404, "err_code": 10059})]
    assert await listed(server) == {}


async def test_a_list_that_is_refused_says_so() -> None:
    server = Server({"a": 1})
    server.refusals = [ApiError("list", {"code": 400, "err_code": 10025})]
    with pytest.raises(StorageUnavailable, match="10025"):
        await listed(server)
