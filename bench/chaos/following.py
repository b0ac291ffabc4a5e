"""Reads the records of clients while they are written, and writes down what the harness recorded itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gangline.testing.kit.records import SentRequest, SystemHistory, add


class Follower:
    """Follows the files of clients while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._requests: dict[str, SentRequest] = {}

    def news(self) -> Sequence[SentRequest]:
        """The requests answered since the last call."""
        found = []
        for path in self._folder.glob("client-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in text[:whole].splitlines():
                fields = json.loads(line)
                request = add(self._requests, fields)
                if request is not None and fields["e"] == "told":
                    found.append(request)
                    del self._requests[request.id]
        return found


def save(history: SystemHistory, path: Path) -> None:
    """What the harness recorded, for people who investigate a verdict: one line per process, fault and result."""
    with path.open("w") as file:
        for what, items in (
            ("life", history.lives),
            ("trouble", history.troubles),
            ("shown", history.shown),
        ):
            for item in items:
                file.write(json.dumps({"e": what, **asdict(item)}) + "\n")
        for since, until in history.blind:
            file.write(json.dumps({"e": "blind", "since": since, "until": until}) + "\n")
        for job, (state, value) in history.results.items():
            file.write(json.dumps({"e": "result", "job": job, "state": state, "value": value}) + "\n")
