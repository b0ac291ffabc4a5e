"""What docs/explanation/threat-model.md says of answers: wherever they go, they are no requests."""

from __future__ import annotations

import pytest

from ..bus.conftest import collect
from ..waiting import PATIENCE_S
from .conftest import Site, ask, cut

pytestmark = pytest.mark.server

API = "$JS.API"


async def test_an_answer_or_an_acknowledgement_is_no_request(site_of):
    site: Site = site_of(cut("operator", "coordinator", "dispatcher", "worker", "producer=producer:invoices"))
    await site.dispatcher()
    await site.worker("w1")
    operator, producer = await site.bus("operator"), await site.bus("producer")
    stats = "gangline.worker.images.w1.stats"
    before = await ask(operator, stats)
    await operator.request("gangline.task.nowhere.x", b"[]", timeout_s=PATIENCE_S)
    heard = collect()
    await operator.subscribe("gangline.worker.images.w1.*", heard)
    await operator.flush()
    for target in (
        *(
            f"{API}.STREAM.{what}.{stream}"
            for what in ("DELETE", "PURGE")
            for stream in ("GANGLINE_TASKS", "GANGLINE_JOBS")
        ),
        *(f"gangline.worker.images.w1.{operation}" for operation in ("drain", "resize", "reserve", "teardown")),
    ):
        producer.publish(f"{API}.INFO", reply=target)
        producer.publish("gangline.task.invoices.x", b"[]", reply=target)
    await heard.count(8)  # the worker has them, too
    assert {"GANGLINE_TASKS", "GANGLINE_JOBS"} <= set((await ask(operator, f"{API}.STREAM.NAMES"))["streams"])
    first = {"last_by_subj": "gangline.task.nowhere.x"}
    assert "error" not in await ask(operator, f"{API}.STREAM.MSG.GET.GANGLINE_TASKS", **first)
    assert (await ask(operator, stats))["load"] == before["load"]
    assert await site.refused() == []


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
