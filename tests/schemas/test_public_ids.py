from __future__ import annotations

from gangline.schemas.messages.gangs import GangReply
from gangline.schemas.names import is_token_of, public_id
from gangline.schemas.records.gangs import GangState, Seat


def test_a_public_id_is_the_same_everywhere_and_does_not_give_the_token_away():
    assert public_id("Q2xvc2Vk") == "~e6tHD3xTyH_vNaSfQSDRlQ"
    assert public_id("Q2xvc2Vk") == public_id("Q2xvc2Vk") != public_id("Q2xvc2Vl")
    assert "Q2xvc2Vk" not in public_id("Q2xvc2Vk") and len(public_id("t" * 64)) == 23
    assert public_id(public_id("Q2xvc2Vk")) == public_id("Q2xvc2Vk")


def test_only_the_token_itself_proves_a_right():
    id = public_id("secret")
    assert is_token_of("secret", id)
    assert not any(is_token_of(shown, id) for shown in (id, "Secret", "", None))
    assert not any(is_token_of(shown, "") for shown in ("", None, public_id("")))


def test_what_is_told_of_a_gang_in_public_has_no_token():
    seat = Seat(rank=0, pool="p", worker="w", token="secret-seat", epoch=1)
    reply = GangReply(
        id="g", state=GangState.FORMED, step="formed", generation=1, size=1, ttl_s=1.0, seats=(seat,),
        owner_token="secret-owner",
    )  # fmt: skip
    assert "secret" not in reply.public().model_dump_json()
