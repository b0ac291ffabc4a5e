"""The Python in the documentation runs, page by page, on an in-memory cluster of the page's own pool.

A block marked `notest` (it needs a server, files or processes) is only compiled.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest

from gangline.testing import cluster

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int
    code: str
    runs: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text[: found.start()].count("\n") + 2, found["code"], "notest" not in found["mark"])
        for found in FENCE.finditer(text)
    ]


def compiled(page: Path, block: Block) -> CodeType:
    padded = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own lines
    return compile(padded, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if blocks(page)]


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
async def test_the_samples_of_a_page_run_in_order(page, monkeypatch):
    module = ModuleType(page.stem.replace("-", "_"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = module.__dict__
    waiting: list[CodeType] = []
    for block in blocks(page):
        code = compiled(page, block)
        if not block.runs:
            continue
        if code.co_flags & inspect.CO_COROUTINE:
            waiting.append(code)  # needs a client, so all declarations of the page come first
        else:
            exec(code, names)
    if not waiting:
        return
    # A page that needs more than one worker of one pool says so itself.
    running = names.get("running") or cluster(names["pool"])
    async with running as client:
        names["client"] = client
        for code in waiting:
            await eval(code, names)


def test_the_samples_are_found():
    assert {"README.md", "docs/tutorial/first-pool.md", "docs/how-to/write-tasks.md"} <= {ids(page) for page in PAGES}
    assert sum(block.runs for page in PAGES for block in blocks(page)) > 12
