"""What peers are measured with, as far as that needs none of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.peers.board import CAPACITY, Board
from bench.peers.catalogue import OURS, OURS_MANY, PEERS, RESULTS_SAY
from bench.peers.cell import Cell, ResultCell
from bench.peers.durable import Durable
from bench.peers.environments import FOLDER, NotInstalled, cache_folder, environment


def cell(rate: float, start_ms: float) -> Cell:
    return Cell(done_per_s=rate, submitted_per_s=rate, start_p50_ms=start_ms, start_p99_ms=9.0, cpu_us={})


def test_a_board_is_read_by_whoever_has_its_path(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", make=True)
    worker = Board(tmp_path / "board")
    worker.ran(time.monotonic() - 0.5)
    worker.ran(time.monotonic() - 0.25)
    assert board.count == 2
    soon, late = board.starts_s()
    assert 0.25 <= soon < 0.5 <= late
    assert board.last_at <= time.monotonic()
    board.reset()
    assert worker.count == 0
    assert worker.starts_s() == []


def test_a_board_counts_on_when_it_keeps_no_more_starts(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", make=True)
    for _ in range(CAPACITY + 5):
        board.ran(0.0)
    assert board.count == CAPACITY + 5
    assert len(board.starts_s()) == CAPACITY


def test_the_best_peer_is_a_durable_one_and_ratios_are_by_round() -> None:
    found = Durable(
        cells={
            OURS.name: [cell(900, 1.0), cell(600, 2.0)],
            OURS_MANY.name: [cell(1200, 1.0), cell(900, 2.0)],
            "Celery": [cell(9000, 0.1), cell(9000, 0.1)],  # acknowledged before it runs
            "FastStream": [cell(300, 2.0), cell(300, 2.0)],
            "arq": [cell(100, 0.5), cell(100, 1.0)],
        },
        missing={},
        versions={},
    )
    assert found.best == "FastStream"
    assert found.soonest == "arq"
    rates, many, starts = found.figures()
    assert rates.figure.name == "durable_vs_best_peer"
    assert rates.rounds == (3.0, 2.0)
    assert many.figure.name == "durable_many_vs_best_peer" and many.rounds == (4.0, 3.0)
    assert starts.rounds == (2.0, 2.0)


def answers(rate: float, answer_ms: float) -> ResultCell:
    return ResultCell(answered_per_s=rate, answer_p50_ms=answer_ms, answer_p99_ms=9.0, cpu_us={})


def test_results_are_compared_with_the_fastest_and_with_the_soonest_peer_that_keeps_them() -> None:
    found = Durable(
        cells={OURS.name: [cell(900, 1.0)], "arq": [cell(300, 2.0)]},
        missing={},
        versions={},
        results={OURS.name: [answers(800, 1.0)], "arq, tuned": [answers(400, 8.0)], "SAQ, tuned": [answers(200, 0.5)]},
    )
    assert (found.best_results, found.soonest_results) == ("arq, tuned", "SAQ, tuned")
    *_, rates, times = found.figures()
    assert (rates.figure.name, rates.rounds) == ("submit_result_c64", (2.0,))
    assert (times.figure.name, times.rounds) == ("submit_result_p50_ms", (2.0,))


def test_without_peers_there_is_no_figure() -> None:
    found = Durable(cells={OURS.name: [cell(900, 1.0)]}, missing={"arq": "no redis-server"}, versions={})
    assert found.best is None
    assert found.figures() == []


def test_every_run_says_what_it_promises_and_has_a_name_of_its_own() -> None:
    runs = [OURS, OURS_MANY, *(run for peer in PEERS for run in peer.runs)]
    assert set(RESULTS_SAY) <= {run.name for run in runs if run.results}
    assert len({run.name for run in runs}) == len(runs)
    assert all(run.says and run.acks and run.stores for run in runs)
    for peer in PEERS:
        assert not peer.runs[0].tuned, f"{peer.name}: its defaults come first"
        assert any(run.tuned for run in peer.runs), peer.name


def test_environments_are_outside_of_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    project = Path(__file__).resolve().parents[2]
    assert not cache_folder().is_relative_to(project)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.mark.long  # pip resolves twice; only benchmarks install peers
@pytest.mark.processes
async def test_a_peer_that_cannot_be_installed_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotInstalled, match="pip could not install no-such-peer"):
        await environment("no-such-peer", ("no-such-peer==1.0",))
    with pytest.raises(NotInstalled):  # half an environment is not taken for one
        await environment("no-such-peer", ("no-such-peer==1.0",))
