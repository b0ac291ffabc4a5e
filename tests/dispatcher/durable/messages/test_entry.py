"""What a queue keeps of one message."""

from __future__ import annotations

import pytest

from gangline.bus.port.bus import StreamMessage
from gangline.dispatcher.durable.messages.entry import QueuedMessage
from gangline.schemas.messages.submission import Submission
from gangline.schemas.names import Names

NAMES = Names("ns")


@pytest.mark.parametrize(
    ("given", "earlier"),
    [
        ({"Gangline-Job": "named"}, "named"),
        ({"gangline-job": "named"}, "named"),
        ({"gangline-job": " named "}, "named"),
        (None, "57"),
    ],
)
def test_earlier_versions_knew_a_tenants_job_by_the_id_that_its_submitter_wrote_in_any_case(given, earlier):
    subject = NAMES.of_tenant(NAMES.task("images", "resize"), "lab")
    submission = Submission.parse(NAMES, subject, given, sequence=57, published_at=1.0)
    entry = QueuedMessage(StreamMessage(subject=subject, data=b"{}", headers=given, sequence=57, at=1.0), submission)
    assert (submission.job, entry.earlier_id) == (f"images.t3-lab-{earlier}", earlier)
