"""What a worker tells OpenTelemetry of gangs: a span for each member in the gang's trace, and numbers that balance."""

from __future__ import annotations

from ...support.worker.gang_rig import Leader
from ...support.worker.rig import Rig, on_rig
from ..execution.test_telemetry import PARENT, spans

__all__ = ["spans"]


@on_rig(slots=4)
async def test_each_member_has_a_span_in_its_gangs_trace_from_form_to_its_end(rig: Rig, spans, leader: Leader):  # noqa: F811
    await leader.gang(ranks=2, traceparent=PARENT)
    assert spans.get_finished_spans() == ()
    await leader.teardown(reason="crashed: rank 0")
    members = [span for span in spans.get_finished_spans() if span.name == "gangline.gang.member"]
    assert [span.attributes["gangline.rank"] for span in members] == [0, 1]
    for span in members:
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
        assert span.attributes["gangline.gang"] == "g"
        assert span.events[-1].attributes == {"reason": "crashed: rank 0"}


@on_rig(slots=4)
async def test_the_numbers_balance(rig: Rig, leader: Leader):
    await leader.gang("a", ranks=2)
    await leader.gang("b")
    await leader.hold("c", ranks=4)
    await leader.hold("d")
    assert rig.worker.statistics().gangs["members"] == 3
    await leader.teardown("a")
    await leader.teardown("b")
    await rig.hand.quiet(3.0)
    assert rig.worker.statistics().gangs == {
        "held": 3, "refused": 1, "freed": 1, "formed": 2, "torn_down": 2, "stopped": 2, "failed": 0, "alone": 0,
        "members": 0,
    }  # fmt: skip
