"""Where the time of the suite goes: `pytest -p tests.support.times`.

For each folder of tests: CPU seconds of the test processes, CPU seconds of the processes that tests started and that
ended during the test, and seconds in which a test process neither computed nor had a child that did.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest

_began: dict[str, tuple[float, float, float]] = {}
_tests: Counter[str] = Counter()
_own: defaultdict[str, float] = defaultdict(float)
_children: defaultdict[str, float] = defaultdict(float)
_waiting: defaultdict[str, float] = defaultdict(float)
_processes: list[tuple[float, float]] = []


def _now() -> tuple[float, float, float]:
    spent = os.times()
    return time.monotonic(), spent.user + spent.system, spent.children_user + spent.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _began[item.nodeid] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        began = _began.pop(item.nodeid)
        report.user_properties.append(("spent", [after - before for after, before in zip(_now(), began, strict=True)]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties: list[tuple[str, Any]] = report.user_properties
    for name, spent in properties:
        if name == "spent" and report.when == "teardown":
            folder = report.nodeid.partition("::")[0].split("/")[1]
            wall, own, children = (float(each) for each in spent)
            _tests[folder] += 1
            _own[folder] += own
            _children[folder] += children
            _waiting[folder] += max(0.0, wall - own - children)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["spent"] = _now()[1:]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    own, children = node.workeroutput["spent"]
    _processes.append((own, children))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    write = terminalreporter.write_line
    terminalreporter.section("where the time went, in seconds")
    write(f"{'folder':<16}{'tests':>7}{'CPU':>9}{'children':>10}{'waiting':>9}")
    for folder in sorted(_tests, key=lambda each: -(_own[each] + _children[each])):
        write(_row(folder, _tests[folder], _own[folder], _children[folder], _waiting[folder]))
    own, children, waiting = sum(_own.values()), sum(_children.values()), sum(_waiting.values())
    write(_row("all", _tests.total(), own, children, waiting))
    if _processes:
        own, children = sum(each[0] for each in _processes) - own, sum(each[1] for each in _processes) - children
        write(_row("beside tests", 0, own, children, 0.0))


def _row(name: str, tests: int, own: float, children: float, waiting: float) -> str:
    return f"{name:<16}{tests:>7}{own:>9.1f}{children:>10.1f}{waiting:>9.1f}"
