"""What may be on the way to and from rank 0, by events."""

from __future__ import annotations

from gangline.worker.gangs.flow_core import ASK_FIRST_S, PATIENCE_S, FetchWindow, Part, SendWindow


def window(parts: int = 10, receivers: tuple[int, ...] = (1, 2)) -> SendWindow:
    """Of parts of 100 bytes, one to a batch, four on the way."""
    sizes = {Part(0, part): 100 for part in range(parts)}
    return SendWindow(sizes, receivers, batch_bytes=100, window_bytes=400)


def sent(sending: SendWindow, now: float = 0.0) -> list[int]:
    return [part.part for batch in sending.send(now) for part in batch.parts]


def test_the_slowest_receiver_sets_the_pace():
    sending = window()
    assert sent(sending) == [0, 1, 2, 3] and sent(sending) == []
    sending.confirmed(1, 4, 0.0)
    assert sent(sending) == []
    sending.confirmed(2, 1, 0.0)
    assert sent(sending) == [4]
    sending.confirmed(2, 4, 0.0)
    assert sent(sending) == [5, 6, 7]
    for who in (1, 2):
        sending.confirmed(who, 8, 0.0)
    assert sent(sending) == [8, 9] and sending.wake_at is not None
    for who in (1, 2):
        sending.confirmed(who, 10, 0.0)
    assert sending.wake_at is None and sent(sending) == []


def test_what_is_on_the_way_is_not_sent_again_and_what_was_lost_is():
    sending = window(parts=4)
    sent(sending)
    sending.ask(Part(0, part) for part in (0, 1, 7))
    assert sent(sending) == []
    for who in (1, 2):
        sending.confirmed(who, 4, 0.0)
    for _ in range(3):  # all that miss it
        sending.ask([Part(0, 1)])
    assert sent(sending) == [1] and sending.last == 5
    sending.ask([Part(0, 1)])
    assert sent(sending) == []


def test_a_large_part_goes_when_nothing_else_is_on_the_way():
    sending = SendWindow({Part(0, 0): 100, Part(0, 1): 900}, [1], batch_bytes=100, window_bytes=400)
    assert sent(sending) == [0]
    sending.confirmed(1, 1, 0.0)
    assert sent(sending) == [1]


def test_who_confirms_nothing_is_asked_again_and_then_not_waited_for():
    sending = window()
    sent(sending, 5.0)
    assert not sending.tick(5.0)
    assert sending.wake_at == 5.0 + ASK_FIRST_S and sending.tick(5.0 + ASK_FIRST_S)
    sending.confirmed(1, 4, 6.0)
    assert sent(sending, 6.0) == [] and list(sending.receivers) == [1, 2]
    assert sending.tick(5.0 + PATIENCE_S) and list(sending.receivers) == [1]
    assert sent(sending, 15.0) == [4, 5, 6, 7]
    sending.confirmed(2, 0, 15.0)  # it is back: it gets what is sent from now on in its time
    assert list(sending.receivers) == [1, 2]
    sending.confirmed(1, 8, 15.0)
    assert sent(sending, 15.0) == []
    sending.confirmed(2, 8, 15.0)
    assert sent(sending, 15.0) == [8, 9]


def test_without_receivers_that_confirm_everything_goes_at_once():
    sending = window(receivers=())
    assert sent(sending) == list(range(10)) and sending.wake_at is None
    sending.ask([Part(0, 3)])
    assert sent(sending) == [3]


def test_a_window_of_parts_is_fetched_from_all_members():
    fetching = FetchWindow(400)
    fetching.add(1, [1, 2], 150)
    fetching.add(2, [1, 2], 150)
    assert fetching.request() == {1: [1, 2]} and fetching.request() == {}
    assert fetching.has(2) and fetching.requested(2) == {} and fetching.requested() == {1: [1, 2]}
    fetching.add(1, [1, 2], 150)  # its member has said it twice
    fetching.arrived(1, 1)
    assert fetching.request() == {2: [1]}
    fetching.arrived(2, 2)  # unasked
    fetching.arrived(1, 2)
    assert fetching.request() == {} and fetching.requested() == {2: [1]}
    fetching.forget(2)
    assert not fetching.has(2)
    fetching.add(3, [0], 1000)
    assert fetching.request() == {3: [0]}
