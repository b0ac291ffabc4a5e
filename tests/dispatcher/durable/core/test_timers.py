"""What is to be done when."""

from __future__ import annotations

from gangline.dispatcher.durable.core.timers import Agenda, Due


def test_an_agenda_gives_what_is_due_in_order_and_forgets_what_was_moved():
    agenda = Agenda()
    agenda.set((Due.RETRY, 1), 5.0)
    agenda.set((Due.DEADLINE, 2), 3.0)
    agenda.set((Due.RETRY, 1), 2.0)
    agenda.set((Due.TIMEOUT, 3), 9.0)
    agenda.set((Due.MISFIT, 4), 1.0)
    agenda.forget(4)
    assert list(agenda.due(4.0)) == [(Due.RETRY, 1), (Due.DEADLINE, 2)]
    assert agenda.next_at == 9.0
    for number in range(1000):
        agenda.set((Due.TIMEOUT, 3), 9.0 + number)
    assert len(agenda._heap) < 200
