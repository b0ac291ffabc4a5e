"""What the protocol page and others say of gangs is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from gangline.cli.views.gangset_file import parse_sets
from gangline.schemas.errors import base as errors
from gangline.schemas.messages import gangs as messages
from gangline.schemas.names import GangOperation, Operation
from gangline.schemas.records import gangs as records
from gangline.telemetry.metrics import coordinator as coordinator_metrics

from ..support.rows import case

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROTOCOL = (DOCS / "reference" / "protocol.md").read_text()
OWNERS = PROTOCOL[PROTOCOL.index("## Requests for gangs") : PROTOCOL.index("## Events of gangs")]
EVENTS = PROTOCOL[PROTOCOL.index("## Events of gangs") : PROTOCOL.index("## A gang at its workers")]
WORKERS = PROTOCOL[PROTOCOL.index("## A gang at its workers") : PROTOCOL.index("## Frames")]
KEYS = PROTOCOL[PROTOCOL.index("## Keys of the ledger") :]

ASKED: dict[tuple[str, str], type[BaseModel]] = {
    (OWNERS, GangOperation.ACQUIRE): messages.AcquireRequest,
    (OWNERS, GangOperation.RENEW): messages.OwnedRequest,
    (OWNERS, GangOperation.RELEASE): messages.OwnedRequest,
    (OWNERS, GangOperation.END): messages.EndRequest,
    (OWNERS, GangOperation.GET): messages.GetRequest,
    (OWNERS, GangOperation.LIST): messages.GangListRequest,
    (OWNERS, GangOperation.WHY): messages.GangQuery,
    (OWNERS, GangOperation.REPORT): messages.MemberReport,
    (WORKERS, Operation.HOLD): messages.HoldRequest,
    (WORKERS, Operation.UNHOLD): messages.UnholdRequest,
    (WORKERS, Operation.KEEP): messages.KeepRequest,
    (WORKERS, Operation.FORM): messages.FormRequest,
    (WORKERS, Operation.TEARDOWN): messages.TeardownRequest,
    (WORKERS, Operation.PING): messages.PingRequest,
}
ANSWERED: dict[tuple[str, str], type[BaseModel]] = {
    (OWNERS, GangOperation.LIST): messages.GangListReply,
    (OWNERS, GangOperation.WHY): messages.GangWhyReply,
    (OWNERS, GangOperation.REPORT): messages.ReportReply,
    (WORKERS, Operation.HOLD): messages.HoldReply,
    (WORKERS, Operation.KEEP): messages.KeepReply,
    (WORKERS, Operation.FORM): messages.FormReply,
    (WORKERS, Operation.TEARDOWN): messages.TeardownReply,
    (WORKERS, Operation.PING): messages.PingReply,
}


def cells(section: str, name: str) -> list[str]:
    row = next(line for line in section.splitlines() if line.startswith(f"| `{name}` |"))
    return row.split("|")


def test_the_subject_of_every_operation_is_there():
    for operation in GangOperation:
        with case(operation):
            assert f"`<ns>.gang.{operation}`" in PROTOCOL


def test_every_field_of_a_request_is_there_and_marked_if_it_is_required():
    for place, model in ASKED.items():
        with case(place, model):
            asked = cells(*place)[2]
            assert [name for name in model.model_fields if f"`{name}`" not in asked] == []
            required = [name for name, field in model.model_fields.items() if field.is_required()]
            assert re.findall(r"`(\w+)` \*required\*", asked) == required


def test_every_field_of_an_answer_is_there():
    for place, model in ANSWERED.items():
        with case(place, model):
            answered = cells(*place)[3]
            assert set(model.model_fields) == set(re.findall(r"`(\w+)`", answered))


def test_the_choices_and_defaults_of_a_request_for_a_gang_are_there():
    asked = cells(OWNERS, "acquire")[2]
    assert all(f"`{choice.value}`" in asked for choice in (*records.Strategy, *records.RestartPolicy))
    for name, text in re.findall(r"`(\w+)` \(([\d.]+|true|false)\)", asked):
        model = messages.AcquireRequest if name in messages.AcquireRequest.model_fields else records.Bundle
        field = {"size": "count"}.get(name, name)
        assert str(model.model_fields[field].default).lower().removesuffix(".0") == text, name


def test_a_gang_and_its_seats_are_told_whole():
    told = [set(re.findall(r'"(\w+)"', found)) for found in re.findall(r"`(\{[^`]+\})`", OWNERS)]
    assert set(messages.GangReply.model_fields) in told
    assert set(records.Seat.model_fields) in told
    assert set(records.Part.model_fields) in told
    assert [state for state in records.GangState if f"`{state.value}`" not in OWNERS] == []


def test_every_error_of_gangs_is_there():
    of_gangs = re.compile(r"Gang(?!line)|Shard|Coordinator|Owner|Generation")
    codes = {cls.code for name, cls in vars(errors).items() if isinstance(cls, type) and of_gangs.search(name)}
    assert len(codes) >= 10
    assert {code for code in codes if f"`{code}`" not in OWNERS} <= {"gang_restarted"}, (
        "owners make that one themselves"
    )


def test_every_event_is_there_with_all_its_fields():
    assert [kind for kind in messages.GangEventKind if f"| `{kind.value}` |" not in EVENTS] == []
    (fields,) = re.findall(r"`(\{[^`]+\})`", EVENTS)
    assert set(re.findall(r'"(\w+)"', fields)) == set(messages.GangEvent.model_fields)


def test_every_cause_that_a_worker_reports_is_there():
    assert [cause for cause in messages.MemberCause if f"`{cause.value}`" not in WORKERS] == []
    assert [name for name in messages.SeatRequest.model_fields if f"`{name}`" not in cells(WORKERS, "hold")[2]] == []


def test_every_field_of_a_record_is_there():
    cases = [
        ("leader", records.LeaderRecord),
        ("leader_alive", records.LeaderAlive),
        ("gang.<gang>", records.GangRecord),
        ("member.<pool>.<worker>.<gang>", records.MemberRecord),
        ("gangset.<name>", records.GangSetRecord),
    ]
    for key, record in cases:
        with case(key, record):
            told = set(re.findall(r"\w+", cells(KEYS, key)[2]))
            assert set(record.model_fields) - {"v"} <= told


def test_every_metric_of_a_coordinator_is_on_the_page_that_tells_how_to_observe():
    page = (DOCS / "how-to" / "observe.md").read_text()
    named = set(re.findall(r"^(gangline\.\S+)", coordinator_metrics.__doc__ or "", re.MULTILINE))
    assert len(named) == 14
    assert set(re.findall(r"`(gangline\.(?:gang|coordinator)\.\w+)` \|", page)) == named


def test_declarations_of_sets_on_the_pages_are_taken_as_they_stand():
    for page in ["standing-gangs.md", "use-gangs.md"]:
        with case(page):
            text = (DOCS / "how-to" / page).read_text()
            (found,) = re.findall(
                r"^(?:```yaml\n|\$ cat llama.yaml\n)(name: .*?)^(?:```|\$ )", text, re.MULTILINE | re.DOTALL
            )
            sets = parse_sets(found, page)
            assert sets["llama"].gangs == 2 and sets["llama"].template.size == 4
