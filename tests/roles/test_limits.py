"""What permissions on subjects cannot prevent, as docs/how-to/permissions.md says. Should a server come that does, the
page is to be changed."""

from __future__ import annotations

import json

import pytest

from gangline.bus.port.bus import BucketSettings, Storage
from gangline.schemas.names import Names

from ..bus.conftest import collect
from ..waiting import PATIENCE_S
from .conftest import Site, cut

pytestmark = pytest.mark.server


async def test_an_answer_goes_wherever_the_question_says(site_of):
    site: Site = site_of(cut("operator", "one=worker:images.w1"))
    operator, one = await site.bus("operator"), await site.bus("one")
    ledger = await operator.bucket(Names().ledger_bucket, BucketSettings(storage=Storage.MEMORY))
    own, others = "$KV.GANGLINE_LEDGER.alive.images.w1", "gangline.worker.images.w2.frames"
    heard = collect()
    await operator.subscribe(others, heard)
    await operator.flush()
    await one.request(own, b"anything", timeout_s=PATIENCE_S)
    question = json.dumps({"last_by_subj": own}).encode()
    one.publish("$JS.API.STREAM.MSG.GET.KV_GANGLINE_LEDGER", question, reply=others)
    (message,) = await heard.count(1)
    assert json.loads(message.data)["message"]["subject"] == own
    assert await site.refused() == []
    assert await ledger.get("alive.images.w1") is not None


async def test_gateways_answer_to_inboxes_alone(site: Site):
    await site.everything()
    producer, operator = await site.bus("producer"), await site.bus("operator")
    heard = collect()
    await operator.subscribe("$KV.GANGLINE_LEDGER.gang.mine", heard)
    await operator.flush()
    producer.publish("gangline.call.images.double", b"[1]", reply="$KV.GANGLINE_LEDGER.gang.mine")
    assert (await producer.request("gangline.call.images.double", b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    await operator.flush()
    assert heard.items == []
    (line,) = await site.refused()
    assert "user:gateway" in line
