"""Lists of a bucket that changes while it is listed. What a real server lists is in `test_conformance.py`."""

from __future__ import annotations

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
        revision = self.keys.get(key)
        return None if revision is None else StoredEntry(key=key, value=b"", revision=revision, headers={})

    async def read(self, query: Mapping[str, Any]) -> StoredEntry | None:
        later = [(revision, key) for key, revision in self.keys.items() if revision >= query["seq"]]
        return await self.stored(min(later)[1]) if later else None


async def listed(server: Server) -> dict[str, int]:
    return {entry.key: entry.revision for entry in await snapshot(server, (">",))}  # type: ignore[arg-type]


async def test_a_list_that_has_a_new_value_lacks_nothing_that_is_older() -> None:
    def change(server: Server) -> None:
        server.keys |= {"between": 3, "a": 4}

    assert await listed(Server({"a": 1, "b": 2}, change)) == {"b": 2, "between": 3, "a": 4}


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
