"""Headers of submitted tasks that mean nothing are kept, so that somebody can be told."""

from __future__ import annotations

import pytest

from gangline.schemas.catalogue.catalogue import TASK_HEADERS
from gangline.schemas.messages.submission import Submission, nearest_header
from gangline.schemas.names import Names
from gangline.schemas.wire import headers

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
    schedules = (headers.SCHEDULE_NAME, headers.PAUSED, headers.IDEMPOTENT, headers.TIME_ZONE)
    letters = {text for name, text in vars(headers).items() if name.startswith("DEAD_")} | {headers.SUBJECT}
    for name in (*TASK_HEADERS, *schedules, *letters):
        task = NAMES.task("images", "thumbnail")
        for text in ("1", "images.x", "UTC", "@hourly", "true"):
            try:
                read = Submission.parse(NAMES, task, {spelt(name): text}, sequence=7, published_at=1.0)
            except Exception:  # not a value of this header
                continue
            assert read.unknown_headers == ()


def test_the_nearest_header_is_found_by_what_it_does_not_share_with_all_others() -> None:
    assert nearest_header("gangline-prio") == headers.PRIORITY
    assert nearest_header("Gangline-Timout") == headers.TIMEOUT
    assert nearest_header("Gangline-Colour") is None
