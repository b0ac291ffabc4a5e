"""Headers of submitted tasks: those that mean something are documented, and names of others are kept for a warning."""

from __future__ import annotations

import pytest

from gangline.schemas.catalogue.catalogue import TASK_HEADERS
from gangline.schemas.errors.base import InvalidRequest
from gangline.schemas.messages.submission import OF_TASKS, Submission
from gangline.schemas.names import Names
from gangline.schemas.wire import headers

from ...support.rows import case

NAMES = Names()


def unknown(**given: str) -> tuple[str, ...]:
    named = {name.replace("_", "-"): text for name, text in given.items()}
    task = NAMES.task("images", "thumbnail")
    return Submission.parse(NAMES, task, named, sequence=7, published_at=1.0).unknown_headers


def test_a_misspelt_header_of_gangline_is_kept_and_the_task_is_taken_as_without_it() -> None:
    assert unknown(Gangline_Prio="5", gangline_timout="3", Gangline_Key="u") == ("Gangline-Prio", "gangline-timout")


def test_headers_of_calls_mean_nothing_on_a_submission() -> None:
    assert unknown(Gangline_Arguments="both") == ("Gangline-Arguments",)


def test_other_headers_are_not_ours_to_judge() -> None:
    assert unknown(Ganglines="1", tracestate="a=b", X_Gangline_Prio="1", Nats_Rollup="all") == ()


@pytest.mark.parametrize("spelt", [str, str.lower, str.upper])
def test_no_header_that_somebody_reads_is_unknown(spelt) -> None:
    letters = {text for name, text in vars(headers).items() if name.startswith("DEAD_")} | {headers.SUBJECT}
    for name in (*TASK_HEADERS, headers.PAUSED, *letters):
        task = NAMES.task("images", "thumbnail")
        for text in ("1", "images.x", "UTC", "@hourly", "true"):
            try:
                read = Submission.parse(NAMES, task, {spelt(name): text}, sequence=7, published_at=1.0)
            except Exception:  # not a value of this header
                continue
            assert read.unknown_headers == ()


def parsed(given: dict[str, str]) -> Submission | str:
    try:
        task = NAMES.task("images", "thumbnail")
        read = Submission.parse(NAMES, task, {headers.KEY: "u"} | given, sequence=7, published_at=1.0)
    except InvalidRequest as error:
        return str(error)
    return read._replace(unknown_headers=())


def test_exactly_the_headers_that_are_read_are_documented() -> None:
    for name in [text for text in vars(headers).values() if str(text).startswith("Gangline-")]:
        with case(name):
            read_elsewhere = (headers.FIRST, headers.SCHEDULE_NAME)
            has_a_meaning = any(parsed({name: text}) != parsed({}) for text in ("images.x", "7", "true"))
            assert has_a_meaning == (name in OF_TASKS and name not in read_elsewhere)
            assert (name in OF_TASKS) == (name in TASK_HEADERS)
