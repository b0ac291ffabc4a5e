"""Names and error texts of others do not control the operator's terminal, and are no markup."""

from __future__ import annotations

import ast
import json
import sys
import unicodedata
from pathlib import Path

import pytest
from rich.text import Text

from gangline.board.board_core import Board
from gangline.board.feed import BoardFeed, following
from gangline.cli.console.output import Listing, cell_text, echo, print_json, print_rows, print_value
from gangline.cli.console.watching import ChangeLog, ListView
from gangline.cli.top.interactive import Confirm, Top
from gangline.cli.top.screen import screen
from gangline.schemas.records.gangs import GangState
from gangline.schemas.text import printable
from gangline.testing import cluster

from ..board.test_board_core import beat, gang, lease, register
from ..waiting import until
from .test_operations import reserve, serve
from .test_tables import printed
from .test_top import POOL, SMALL, press

HOSTILE = "[/x][link=http://evil]a\x1b]0;owned\x07\x1b[2J\x9b1m\u202egnp.exe\u2066\u200b:smile:\r\x00\x7f"
SHOWN = (
    r"[/x][link=http://evil]a\u001b]0;owned\u0007\u001b[2J\u009b1m\u202egnp.exe\u2066\u200b:smile:\u000d\u0000\u007f"
)


def unsafe(text: str) -> set[str]:
    """Characters that would control a terminal, or set the direction of its text."""
    return {
        char
        for char in text
        if (unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\t\n\xad\u200c\u200d")
        or unicodedata.bidirectional(char) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    }


def test_each_control_and_each_change_of_direction_is_escaped_and_json_stays_the_same():
    codes = [
        *(*range(0x300), *range(0x600, 0x700), *range(0x2000, 0x2100)),
        *(*range(0xD7F0, 0xE000), *range(0xFE00, 0x10000)),
    ]
    text = "".join(map(chr, [*codes, 0x1F600, *range(0xE0000, 0xE0080)]))
    left = unsafe(printable(text)) - set(map(chr, (*range(0x600, 0x606), 0x6DD)))  # signs of Arabic numbers are visible
    assert not left, left
    assert printable(HOSTILE) == SHOWN and printable("naïve ✓\t東京\nשלום 👩‍💻") == "naïve ✓\t東京\nשלום 👩‍💻"
    assert cell_text("a\n\n\tb") == "a b"
    readable = "".join(char for char in text if not "\ud800" <= char <= "\udfff")
    assert json.loads(printable(json.dumps(readable, ensure_ascii=False))) == readable


def test_what_is_printed_is_escaped(capsys, monkeypatch):
    echo(HOSTILE)
    echo(HOSTILE, err=True, fg="red")
    print_json({HOSTILE: HOSTILE})
    print_rows([HOSTILE], False, table=lambda rows: Listing(("A",), [rows]), empty="")
    print_value(HOSTILE, False)  # a pipe gets what the task returned
    out, err = capsys.readouterr()
    *lines, raw = out.split("\n", 4)
    assert lines[0] == SHOWN and not unsafe("\n".join(lines)) and SHOWN in err and not unsafe(err)
    assert json.loads(lines[1]) == {HOSTILE: HOSTILE} and lines[3].strip() != HOSTILE
    assert "\u202e" in raw
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_value(HOSTILE, False)
    assert not unsafe(capsys.readouterr().out)


def test_cells_are_no_markup_and_our_own_have_a_style():
    rows = [(HOSTILE, Text("serving", "green")), ("[bold]b[/]", Text("lost", "red"))]
    listing = Listing(("NAME", "STATE"), rows, ids=("NAME",), titles=(HOSTILE, "[bold]b[/]"))
    lines = printed(listing, 200)
    assert lines[2].split() == [SHOWN, "serving"] and lines[3].split() == ["[bold]b[/]", "lost"]
    view = ListView(item="row", table=lambda _: listing, empty="", key=str, to_json=dict)
    (line,) = ChangeLog(view, as_json=False).lines([{"a": 1}])
    assert line.endswith(f"{SHOWN}  STATE serving")


def hostile_board() -> Board:
    board = Board()
    register(board, zone=HOSTILE, node=HOSTILE, labels={HOSTILE: HOSTILE})
    beat(board)
    lease(board)
    for each in board.workers["p.w1"].leases.values():
        object.__setattr__(each, "owner", HOSTILE)
    gang(board, owner=HOSTILE, reason=HOSTILE, state=GangState.QUEUED)
    return board


def test_top_shows_them_plainly():
    board = hostile_board()
    waits = {"kind": "gang", "id": HOSTILE, "owner": HOSTILE, "count": 1, "unit": "x", "reasons": [HOSTILE]}
    board.rows["waits"]["x"] = waits
    board.rows["system"]["old:x"] = {"kind": "old", "id": HOSTILE, "at": 1.0, "why": HOSTILE}
    (text,) = ["".join(printed(screen(board), 2000))]
    assert not unsafe(text) and text.count(SHOWN) >= 5


async def test_top_with_keys_shows_them_plainly():
    """Strings in tables and labels of Textual would be markup."""
    async with cluster(POOL) as client, following(BoardFeed(client)) as feed:
        app = Top(client, feed)
        async with app.run_test(size=SMALL) as pilot:
            app._fill("leases", {"~x": (HOSTILE, "train.w1", "1", HOSTILE)})
            assert list(map(str, app.table("leases").get_row_at(0))) == [SHOWN, "train.w1", "1", SHOWN]
            app.tell(HOSTILE)
            app.push_screen(Confirm(HOSTILE))
            await press(pilot, wait_s=1)
            assert isinstance(app.screen, Confirm)


def test_nothing_prints_or_marks_up_past_it():
    """All output of commands goes through `echo`, and no string is parsed as markup."""
    root = Path(sys.modules["gangline.cli"].__file__ or "").parent
    found = []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("click.echo", "click.secho", "print", "Text.from_markup", "sys.stdout.write"):
                found.append(f"{path.relative_to(root)}:{node.lineno} {name}")
    allowed = ("console/output.py:", "__init__.py:", "serving/probe.py:")  # the others import no click
    assert not [each for each in found if not each.startswith(allowed)]


SHOWING = (
    "workers", "leases", "stats words.w1", "gang ls", "top --once", "history", "jobs ls", "dead ls", "queue ls",
    "audit",
)  # fmt: skip


@pytest.mark.server
@pytest.mark.processes
async def test_commands_survive_hostile_names(commands, nats_url, namespace):
    serve(commands)
    for name in ("coordinator", "dispatcher"):
        commands.start(name).await_output(rf"{name}\.started")
    await reserve(nats_url, namespace, slots=1, ttl_s=600, owner=HOSTILE.replace("\0", ""))
    done = commands.run("call", "words.fail", f"why={HOSTILE.replace(chr(0), '')}")
    assert done.returncode == 1 and not unsafe(done.stderr)
    commands.run("submit", "words.fail", "--json", stdin=json.dumps({"why": HOSTILE}))
    await until(lambda: commands.json("leases"), "the lease is in the ledger")
    for line in SHOWING:
        for options in ([], ["--json"]):
            done = commands.run(*line.split(), *options)
            assert done.returncode == 0 and not unsafe(done.stdout + done.stderr), (line, options, done)
