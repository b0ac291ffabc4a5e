"""The protocol of members, by itself: on a network that loses, doubles and reorders."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.schemas.errors.base import InvalidRequest, PayloadTooLarge
from gangline.schemas.wire import codec
from gangline.worker.gangs.collectives_core import (
    MAX_TOTAL_BYTES,
    MAX_VALUE_BYTES,
    Chunks,
    Collective,
    CollectivesCore,
    PeerMessage,
    Send,
    answer_of_receiver,
)
from gangline.worker.gangs.flow_core import ASK_FIRST_S, ASK_MAX_S

from ...scale import repetitions
from ...support.rows import in_rows

Script = list[tuple[Collective, int, list[bytes]]]
"""Calls in order: kind, root, the value of each rank."""


def joined(member: CollectivesCore) -> list[bytes]:
    return [value.join() for value in member.result()]


LONG: dict[str, Any] = {"part_bytes": 16, "window_bytes": 100, "short_bytes": 20}
"""With so small a window, values of some hundred bytes are long."""


def sent_parts(sends: list[Send]) -> list[int]:
    return [item[1] for send in sends if send.message[0] == PeerMessage.RESULT for item in send.message[2]]


class Network:
    """Members that work off one script, and messages between them, one at a time, in any order."""

    def __init__(
        self,
        script: Script,
        size: int,
        *,
        seed: int = 0,
        loss: float = 0.0,
        part_bytes: int = 64,
        ordered: bool = False,
        **limits: int,
    ) -> None:
        self.ordered = ordered
        self.script = script
        self.members = [CollectivesCore(rank=rank, size=size, part_bytes=part_bytes, **limits) for rank in range(size)]
        self.results: list[list[list[bytes]]] = [[] for _ in range(size)]
        self.flying: list[tuple[int, bytes]] = []
        self.random = random.Random(seed)
        self.loss = loss
        self.now = 0.0
        self.most_flying = 0
        self.kinds: set[int] = set()

    def send(self, sends: list[Send]) -> None:
        for to, message in sends:
            self.kinds.add(message[0])
            for rank in range(len(self.members)) if to is None else (to,):
                copies = 0 if self.random.random() < self.loss else 1 + (self.random.random() < self.loss)
                self.flying += [(rank, codec.pack(message))] * copies
        self.most_flying = max(self.most_flying, len(self.flying))

    def go_on(self, rank: int) -> None:
        """Let a member take results and make its next call, as far as it can."""
        member = self.members[rank]
        while not member.waiting:
            done = self.results[rank]
            if member.number > len(done):
                done.append(joined(member))
            if len(done) == len(self.script):
                return
            kind, root, values = self.script[len(done)]
            self.send(member.begin(kind, root, values[rank], self.now))

    def run(self, limit: int = 200_000) -> None:
        order = list(range(len(self.members)))
        self.random.shuffle(order)
        for rank in order:
            self.go_on(rank)
        for _ in range(limit):
            if all(len(done) == len(self.script) for done in self.results):
                return
            if self.flying:
                rank, data = self.flying.pop(0 if self.ordered else self.random.randrange(len(self.flying)))
                message = codec.unpack(data)
                self.send(answer_of_receiver(message, rank))
                if message[0] != PeerMessage.MARK:
                    self.send(self.members[rank].receive(message, self.now))
                self.go_on(rank)
            else:
                waking = [member.wake_at for member in self.members if member.wake_at is not None]
                assert waking, "nobody would ever ask: stuck"
                self.now = max(self.now, min(waking))
                for member in self.members:
                    self.send(member.tick(self.now))
        raise AssertionError(f"not done: {[len(done) for done in self.results]}")

    def check(self) -> None:
        for done in self.results:
            for (kind, root, values), result in zip(self.script, done, strict=True):
                expected = {
                    Collective.BARRIER: [b""],
                    Collective.BROADCAST: [values[root]],
                    Collective.ALL_GATHER: values,
                }[kind]
                assert result == expected


def script_of(size: int, calls: int, seed: int) -> Script:
    draw = random.Random(seed)
    script: Script = []
    for _ in range(calls):
        kind = draw.choice(list(Collective))
        root = draw.randrange(size) if kind is Collective.BROADCAST else 0
        empty = kind is Collective.BARRIER
        values = [b"" if empty else draw.randbytes(draw.choice((0, 1, 40, 64, 65, 300))) for _ in range(size)]
        script.append((kind, root, values))
    return script


@in_rows("size", [1, 2, 8, 20])
def test_all_members_get_the_same_results_in_the_same_order(size):
    network = Network(script_of(size, 12, seed=size), size)
    network.run()
    network.check()
    assert network.now == 0.0, "nobody had to ask, since nothing was lost"


@given(st.integers(0, 2**32), st.integers(2, 6), st.sampled_from((0.02, 0.2, 0.5)), st.booleans())
@settings(max_examples=repetitions(15, whole=settings().max_examples))
def test_lost_doubled_and_reordered_messages_change_no_result(seed, size, loss, long):
    network = Network(script_of(size, 6, seed), size, seed=seed, loss=loss, **(LONG if long else {}))
    network.run()
    network.check()


def test_long_values_are_wanted_and_their_results_confirmed():
    network = Network(script_of(6, 6, seed=2), 6, ordered=True, **LONG)
    network.run()
    network.check()
    assert network.now == 0.0, "nobody had to ask, since nothing was lost"
    assert network.kinds >= {PeerMessage.HOLDS, PeerMessage.WANT, PeerMessage.MARK, PeerMessage.TAKEN}


def test_members_that_ask_while_a_long_result_is_on_its_way_do_not_get_it_again():
    hub = CollectivesCore(rank=0, size=3, part_bytes=1000, window_bytes=50_000)
    hub.begin(Collective.BROADCAST, 0, bytes(100_000), 0.0)
    for rank in (1, 2):
        hub.receive([PeerMessage.TAKEN, 0, rank, 0], 0.0)
    hub.receive([PeerMessage.GIVE, 1, 1, "broadcast", 0, 0, 1, b""], 0.0)
    sent = sent_parts(hub.receive([PeerMessage.GIVE, 1, 2, "broadcast", 0, 0, 1, b""], 0.0))
    assert 40 < len(sent) < 50, "a window of it"
    assert hub.receive([PeerMessage.ASK, 1, 1, None], 1.0) == []
    assert hub.receive([PeerMessage.TAKEN, 1, 1, len(sent)], 1.0) == [], "the other one has not confirmed"
    sent += sent_parts(hub.receive([PeerMessage.TAKEN, 1, 2, 10], 1.0))
    sent += sent_parts(hub.receive([PeerMessage.ASK, 1, 1, {0: [3, 30]}], 1.0))  # it has lost one: 30 is on the way
    for rank in (1, 2) * 5:
        sent += sent_parts(hub.receive([PeerMessage.TAKEN, 1, rank, len(sent)], 1.0))
    assert sorted(sent) == sorted([*range(100), 3]) and hub.wake_at is None


def test_an_old_member_that_neither_waits_to_be_asked_nor_confirms_is_served_too():
    hub, old = (CollectivesCore(rank=rank, size=2, part_bytes=100, window_bytes=200) for rank in (0, 1))
    hub.begin(Collective.ALL_GATHER, 0, b"a" * 40_000, 0.0)
    sends: list[Send] = []
    for part in range(5):
        sends += hub.receive([PeerMessage.GIVE, 1, 1, "all_gather", 0, part, 5, b"b" * 8_000], 0.0)
    del old
    assert sum(1 for send in sends if send.message[0] == PeerMessage.RESULT) > 100, "all of it, at once"
    assert hub.wake_at is None


def test_a_member_gives_all_of_a_long_value_to_an_old_hub_that_asks_for_what_is_missing():
    member = CollectivesCore(rank=1, size=2, part_bytes=100, window_bytes=400)
    first, holds = member.begin(Collective.ALL_GATHER, 0, b"x" * 1000, 0.0)[:2], member.wake_at
    assert holds == ASK_FIRST_S and [send.message[0] for send in first] == [PeerMessage.GIVE, PeerMessage.GIVE]
    given_ = member.receive([PeerMessage.WANT, 1, list(range(2, 10))], 0.3)
    assert [send.message[5] for send in given_] == list(range(2, 10))


def test_the_hub_keeps_one_round_only_however_many_there_were():
    network = Network(script_of(3, 60, seed=1), 3, loss=0.1)
    network.run()
    hub = network.members[0]
    assert hub.number == 60 and hub._kept is not None and hub._kept.number == 60 and hub._gathering is None


def test_a_value_given_before_the_hub_listened_is_asked_for_when_it_does():
    hub, other = (CollectivesCore(rank=rank, size=2, part_bytes=64) for rank in (0, 1))
    other.begin(Collective.ALL_GATHER, 0, b"b", 0.0)  # reaches nobody
    [hello] = hub.begin(Collective.ALL_GATHER, 0, b"a", 0.0)
    [given_again] = other.receive(list(hello.message), 0.0)
    [told] = hub.receive(list(given_again.message), 0.0)
    other.receive(codec.unpack(codec.pack(told.message)), 0.0)
    assert joined(hub) == joined(other) == [b"a", b"b"]


def test_who_waits_asks_after_a_while_and_then_less_often():
    member = CollectivesCore(rank=1, size=2, part_bytes=64)
    member.begin(Collective.BARRIER, 0, b"", 10.0)
    assert member.wake_at == 10.0 + ASK_FIRST_S
    assert member.tick(10.1) == []
    gaps, now = [], 10.0
    for _ in range(8):
        at = member.wake_at
        assert at is not None
        gaps.append(round(at - now, 6))
        now = at
        assert member.tick(now) == [Send(0, (PeerMessage.ASK, 1, 1, None))]
    assert gaps[:5] == [0.2, 0.4, 0.8, 1.6, 2.0] and set(gaps[5:]) == {ASK_MAX_S}


def test_different_calls_at_one_place_fail_everybody_and_say_who_called_what():
    hub, one, two = (CollectivesCore(rank=rank, size=3, part_bytes=64) for rank in range(3))
    hub.begin(Collective.BARRIER, 0, b"", 0.0)
    [given_] = one.begin(Collective.BROADCAST, 1, b"x", 0.0)
    [fail] = hub.receive(list(given_.message), 0.0)
    two.begin(Collective.BARRIER, 0, b"", 0.0)
    for member in (one, two):
        member.receive(list(fail.message), 0.0)
    assert fail.to is None
    assert hub.failure == one.failure == two.failure
    assert hub.failure is not None
    assert "rank 1 called broadcast(root=1), rank 0 called barrier()" in hub.failure
    late = hub.receive([PeerMessage.ASK, 1, 2, None], 0.0)
    assert late == [Send(2, (PeerMessage.FAIL, 1, hub.failure))], "who missed it hears it when it asks"


def test_a_cancelled_call_is_taken_up_by_the_same_call_even_when_it_is_over_by_then():
    hub, other = (CollectivesCore(rank=rank, size=2, part_bytes=64) for rank in (0, 1))
    hub.begin(Collective.ALL_GATHER, 0, b"a", 0.0)
    assert hub.begin(Collective.ALL_GATHER, 0, b"ignored", 0.0) == []
    with pytest.raises(InvalidRequest, match=r"all_gather\(\) was cancelled"):
        hub.begin(Collective.BARRIER, 0, b"", 0.0)
    [given_] = other.begin(Collective.ALL_GATHER, 0, b"b", 0.0)
    hub.receive(list(given_.message), 0.0)
    assert not hub.waiting
    assert hub.begin(Collective.ALL_GATHER, 0, b"ignored", 0.0) == []
    assert joined(hub) == [b"a", b"b"] and hub.number == 1
    hub.begin(Collective.BARRIER, 0, b"", 0.0)
    assert hub.number == 2


def test_values_and_roots_out_of_bounds_are_refused_before_anything_is_begun():
    member = CollectivesCore(rank=0, size=32, part_bytes=64)
    with pytest.raises(InvalidRequest, match="0 to 31"):
        member.begin(Collective.BROADCAST, 32, b"", 0.0)
    limit = MAX_TOTAL_BYTES // 32
    assert limit < MAX_VALUE_BYTES
    with pytest.raises(PayloadTooLarge) as caught:
        member.begin(Collective.ALL_GATHER, 0, bytes(limit + 1), 0.0)
    assert caught.value.details == {"size": limit + 1, "limit": limit}
    assert member.number == 0
    member.begin(Collective.ALL_GATHER, 0, bytes(limit), 0.0)


def test_results_share_messages_as_far_as_they_fit():
    network = Network([(Collective.ALL_GATHER, 0, [b"x"] * 64)], 64, part_bytes=4096)
    network.run()
    network.check()
    assert network.most_flying <= 64 * 3, "one RESULT message for each member, not 64"


def test_parts_come_in_any_order_and_only_fitting_ones_count():
    parts = Chunks(3)
    assert parts.add(2, 3, b"c") and parts.add(0, 3, b"a")
    assert not parts.add(0, 3, b"z") and not parts.add(1, 4, b"z") and not parts.add(3, 3, b"z")
    assert not parts.whole and parts.missing == [1]
    assert parts.add(1, 3, b"b") and parts.whole and parts.join() == b"abc"
    assert Chunks.of(b"", 10).join() == b"" and Chunks.of(b"", 10).count == 1


messages = st.recursive(
    st.none() | st.integers() | st.binary(max_size=8) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.integers(0, 4), inner, max_size=3),
)


@given(st.lists(st.tuples(st.sampled_from(list(PeerMessage)), st.lists(messages, max_size=7))), st.sampled_from((0, 1)))
@settings(max_examples=repetitions(5, whole=settings().max_examples))
def test_no_message_breaks_a_member(heard, rank):
    member = CollectivesCore(rank=rank, size=3, part_bytes=64)
    member.begin(Collective.BROADCAST, 1, b"x", 0.0)
    for say, rest in heard:
        message: list[Any] = [int(say), *rest]
        member.receive(message, 0.0)
