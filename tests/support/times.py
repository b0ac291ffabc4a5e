"""Where the time of the suite goes: `pytest -p tests.support.times`.

For each folder of tests, and for the most expensive modules: CPU seconds of the test processes, CPU seconds of the
processes below them during the test, and seconds in which neither a test process nor a process below it computed.

What is below a test process: servers, the fork server and what it forked, and what those started. On Linux, living
ones count as well; elsewhere, only those that ended.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODULES_SHOWN = 40
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Spent:
    """Seconds, of a folder or of a module."""

    tests: int = 0
    own: float = 0.0
    children: float = 0.0
    waiting: float = 0.0

    def add(self, tests: int, own: float, children: float, waiting: float) -> None:
        self.tests += tests
        self.own += own
        self.children += children
        self.waiting += waiting


_seen = {"ended_s": -1.0, "living_s": 0.0}
"""CPU seconds of the processes below this one, from the last look. Looking costs milliseconds, so it happens after
tests that may have processes, and when one has ended."""
_began: dict[str, tuple[float, float, float]] = {}
_folders: dict[str, Spent] = {}
_modules: dict[str, Spent] = {}
_processes: list[tuple[float, float]] = []


def now(*, look: bool = True) -> tuple[float, float, float]:
    """The time, and the CPU seconds so far of this process and of those below it."""
    spent = os.times()
    ended_s = spent.children_user + spent.children_system
    if look or _seen["ended_s"] != ended_s:
        _seen.update(ended_s=ended_s, living_s=_living_s())
    return time.monotonic(), spent.user + spent.system, ended_s + _seen["living_s"]


def _living_s() -> float:
    """CPU seconds of the living processes below this one, including what each has counted of ended ones."""
    below: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = process.read_text().rpartition(") ")[2].split()  # what follows its pid and its name
            below[int(fields[1])].append((int(process.parent.name), sum(map(int, fields[11:15])) / TICKS_PER_S))
    seconds, parents = 0.0, [os.getpid()]
    while parents:
        for pid, spent_s in below[parents.pop()]:
            seconds += spent_s
            parents.append(pid)
    return seconds


def _is_real(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("docker", "processes", "server", "realtime"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _began[item.nodeid] = now(look=False)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        began = _began.pop(item.nodeid)
        report.user_properties.append(
            ("spent", [after - before for after, before in zip(now(look=_is_real(item)), began, strict=True)])
        )
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties: list[tuple[str, Any]] = report.user_properties
    for name, spent in properties:
        if name == "spent" and report.when == "teardown":
            module = report.nodeid.partition("::")[0]
            wall, own, children = (float(each) for each in spent)
            for table, key in ((_folders, module.split("/")[1]), (_modules, module.removeprefix("tests/"))):
                table.setdefault(key, Spent()).add(1, own, children, max(0.0, wall - own - children))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["spent"] = now()[1:]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    own, children = node.workeroutput["spent"]
    _processes.append((own, children))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    write = terminalreporter.write_line
    terminalreporter.section("where the time went, in seconds")
    for title, table in (("folder", _folders), ("module", _modules)):
        width = max(map(len, (title, "beside tests", *table))) + 1
        write(f"{title:<{width}}{'tests':>6}{'CPU':>9}{'children':>10}{'waiting':>9}")
        costliest = sorted(table.items(), key=lambda each: -(each[1].own + each[1].children))
        for name, spent in costliest[:MODULES_SHOWN]:
            write(_row(f"{name:<{width}}", spent))
        total = Spent()
        for spent in table.values():
            total.add(spent.tests, spent.own, spent.children, spent.waiting)
        write(_row(f"{'all':<{width}}", total))
        if _processes and table is _folders:
            own, children = (sum(each) for each in zip(*_processes, strict=True))
            write(_row(f"{'beside tests':<{width}}", Spent(0, own - total.own, children - total.children)))
        write("")


def _row(name: str, spent: Spent) -> str:
    return f"{name}{spent.tests:>6}{spent.own:>9.1f}{spent.children:>10.1f}{spent.waiting:>9.1f}"
