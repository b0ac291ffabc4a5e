"""Groups dead letters by cause. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from ..dispatcher.jobs.dead_letters import DeadLetter
from ..schemas.records.jobs import JobFailure

_MOST_CHARS = 300
_VARYING = re.compile(
    r"(?P<quoted>'[^']*'|\"[^\"]*\")|(?P<address>0x[0-9a-fA-F]+)|(?P<id>\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b)|(?P<number>\d+(?:\.\d+)?)"
)
_INSTEAD = {"quoted": "'…'", "address": "0x…", "id": "…", "number": "#"}


def cause(error: JobFailure | None) -> str:
    """The error without what differs from one task to the next: numbers, quoted values, addresses, ids."""
    if error is None:
        return ""
    text = error.message.partition("\n")[0][:_MOST_CHARS]
    text = _VARYING.sub(lambda found: _INSTEAD[found.lastgroup or ""], text)
    kind = error.details.get("type")
    return f"{kind}: {text}" if isinstance(kind, str) and not text.startswith(kind) else text


def groups(letters: Iterable[DeadLetter]) -> list[dict[str, object]]:
    """Dead letters with the same task, reason and cause together; the largest group first.

    `jobs` of a group are exactly its members: what a replay of the group is about. `titles` are what people are shown,
    in the same order.
    """
    found: dict[tuple[str, str, str], list[DeadLetter]] = {}
    for letter in letters:
        found.setdefault((letter.target, letter.reason, cause(letter.error)), []).append(letter)
    rows: list[dict[str, object]] = []
    for (target, reason, why), members in found.items():
        members.sort(key=lambda letter: letter.dead_at)
        error = members[-1].error
        rows.append(
            {
                "id": hashlib.sha256(f"{target}\n{reason}\n{why}".encode()).hexdigest()[:12],
                "target": target,
                "reason": reason,
                "cause": why,
                "code": "" if error is None else error.code,
                "count": len(members),
                "first_at": members[0].dead_at,
                "last_at": members[-1].dead_at,
                "jobs": [letter.job for letter in members],
                "titles": [letter.title for letter in members],
            }
        )
    return sorted(rows, key=lambda row: (-int(str(row["count"])), str(row["id"])))
