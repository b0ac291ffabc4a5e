"""A ledger that keeps many revisions of each key, read one by one."""

from __future__ import annotations

import asyncio
from typing import Final

from bench.faults.crew import PATIENCE_S
from gangline.bus.jetstream.api import NO_MESSAGE, ApiError
from gangline.bus.key_value.wire import stored_from_api, stream_configuration
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, KvEntry, StorageUnavailable

REVISIONS: Final = 64
"""Revisions per key; the maximum for a bucket."""


class History:
    """Created by `kept` before any other process opens the bucket."""

    def __init__(self, bus: NatsBus, bucket: str) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def after(self, revision: int) -> KvEntry | None:
        """The first revision after this one; None: there is none yet.

        Raises:
            Unavailable: storage has no leader, or there is no connection.
        """
        wanted = {"seq": revision + 1, "next_by_subj": f"{self._prefix}>"}
        try:
            answer = await self._bus.api.call(f"STREAM.MSG.GET.{self._stream}", wanted, what="read", timeout_s=1.0)
        except ApiError as error:
            if error.number == NO_MESSAGE:
                return None
            raise
        return stored_from_api(self._prefix, answer["message"]).entry()


async def kept(bus: NatsBus, bucket: str, settings: BucketSettings) -> History:
    """Create the bucket with a history; servers that have just started may not know each other yet."""
    configuration = {**stream_configuration(bucket, settings), "max_msgs_per_subject": REVISIONS}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await bus.api.call(f"STREAM.CREATE.KV_{bucket}", configuration, what=f"make the bucket {bucket}")
                return History(bus, bucket)
            except StorageUnavailable:
                await asyncio.sleep(0.1)
