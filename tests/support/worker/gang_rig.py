"""Acts as the leading coordinator: sends gang requests to one worker, and writes to the ledger."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from gangline.bus.port.bus import BucketSettings, KeyValue, KvWrite, Message
from gangline.schemas.names import Names
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, HeldSeat, MemberRecord, Rendezvous, Seat
from gangline.schemas.wire import codec
from gangline.worker.service import Worker

from ...waiting import PATIENCE_S
from .rig import Hand, Rig


class Leader:
    """Requests gang `g` from a worker again and again, and receives reports."""

    def __init__(self, rig: Any, worker: Worker | None = None) -> None:
        """`rig`: a Rig, or anything with its `connect`, `names` and `worker`."""
        self.rig = rig
        self.worker = worker or rig.worker
        self.hand: Hand
        self.reports: list[dict[str, Any]] = []
        """Of failures."""
        self.started: list[dict[str, Any]] = []
        self.reported = asyncio.Event()
        self.deaf = False
        self.turns_away = 0
        """Number of reports to be answered with a temporary error."""
        self.attempts = 0
        self.hold_s = 2.0
        self.kv: KeyValue

    async def listen(self) -> Leader:
        bus = self.rig.connect("leader")
        self.bus = await bus if inspect.isawaitable(bus) else bus
        self.kv = await self.bus.bucket(self.rig.names.ledger_bucket, BucketSettings())
        self.hand = await Hand(self.bus, self.worker, "leader").listen()
        await self.bus.subscribe(self.rig.names.gang_report("*", "*"), self._on_report)
        return self

    def _on_report(self, message: Message) -> None:
        if self.deaf:
            return
        report = codec.from_json(message.data)
        if report["cause"] == "started":
            self.started.append(report)
            self.bus.publish(message.reply, b"{}")
            return
        self.reports.append(report)
        self.reported.set()
        away = {"Nats-Service-Error": "not now", "Nats-Service-Error-Code": "503"} if self.turns_away else None
        self.turns_away = max(0, self.turns_away - 1)
        self.bus.publish(message.reply, b"{}", headers=away)

    async def report(self, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next report."""
        async with asyncio.timeout(within_s):
            await self.reported.wait()
        self.reported.clear()
        return self.reports[-1]

    async def ask(self, operation: str, **body: Any) -> dict[str, Any]:
        answer, headers = await self.hand.request(operation, body)
        assert "Nats-Service-Error" not in headers, answer
        assert isinstance(answer, dict)
        return answer

    async def hold(
        self,
        gang: str = "g",
        *,
        seats: list[dict[str, int]] | None = None,
        ranks: int = 1,
        generation: int = 1,
        **more: Any,
    ) -> dict[str, Any]:
        """Hold `ranks` ranks of one slot each, or the given seats."""
        if "attempt" not in more:
            self.attempts += 1
            more["attempt"] = self.attempts
        seats = [{"rank": rank, "slots": 1} for rank in range(ranks)] if seats is None else seats
        return await self.ask(
            "hold", **{"gang": gang, "generation": generation, "hold_s": self.hold_s, "seats": seats, **more}
        )

    def seats(self, held: dict[str, Any], asked: list[dict[str, int]] | None = None) -> list[Seat]:
        """The held seats, as the coordinator would name them."""
        asked = asked or [{"rank": rank, "slots": 1} for rank in range(len(held["tokens"]))]
        return [
            Seat(
                rank=seat["rank"],
                part=seat.get("part", 0),
                slots=seat["slots"],
                pool=self.worker.id.pool,
                worker=self.worker.id.worker,
                token=token,
                epoch=held["epoch"],
                address="10.0.0.1",
            )
            for seat, token in zip(asked, held["tokens"], strict=True)
        ]

    def record(
        self,
        seats: list[Seat],
        gang: str = "g",
        *,
        generation: int = 1,
        state: GangState = GangState.FORMED,
        **more: Any,
    ) -> GangRecord:
        spec = GangSpec.model_validate({"pool": "images", "size": len({seat.rank for seat in seats}) or 1, **more})
        return GangRecord(id=gang, state=state, spec=spec, generation=generation, seats=tuple(seats))

    async def commit(
        self, seats: list[Seat], held: dict[str, Any], gang: str = "g", *, generation: int = 1, **more: Any
    ) -> int:
        """Write the batch that grants a gang, conditioned on the worker's registration as in the hold."""
        member = MemberRecord(
            gang=gang,
            generation=generation,
            epoch=seats[0].epoch,
            seats=tuple(HeldSeat(rank=s.rank, part=s.part, slots=s.slots, token=s.token) for s in seats),
        )
        names, worker = self.rig.names, self.worker.id
        record = self.record(seats, gang, generation=generation, **more)
        return await self.kv.commit(
            [
                KvWrite(
                    key=Names.member_key(worker, gang),
                    value=member.model_dump_json().encode(),
                    condition_key=names.registration_key(worker),
                    revision=held["reg_revision"],
                ),
                KvWrite(key=Names.gang_key(gang), value=record.model_dump_json().encode()),
            ]
        )

    async def form(
        self, seats: list[Seat], gang: str = "g", *, generation: int = 1, fence: int = 77, **more: Any
    ) -> dict[str, Any]:
        body = {
            "gang": gang,
            "generation": generation,
            "fence": fence,
            "size": len({seat.rank for seat in seats}),
            "seats": [seat.model_dump() for seat in seats],
            "rendezvous": Rendezvous(host="10.0.0.1", port=4000).model_dump(),
            "ttl_s": 10.0,
            "grace_s": 1.0,
        }
        return await self.ask("form", **{**body, **more})

    async def committed(self, gang: str = "g", *, generation: int = 1, **more: Any) -> list[Seat]:
        """Hold and commit. Returns the seats."""
        held = await self.hold(gang, generation=generation, **more)
        assert held["accepted"], held
        seats = self.seats(held)
        await self.commit(seats, held, gang, generation=generation)
        return seats

    async def replaced(self, rank: int, *survivors: Seat, commit: bool = False) -> list[Seat]:
        """Hold a place for that rank in generation 2, beside the survivors."""
        asked = [{"rank": rank, "slots": 1}]
        held = await self.hold(seats=asked, generation=2, hold_s=60.0)
        seats = [*survivors, *self.seats(held, asked)]
        if commit:
            await self.commit(seats, held, generation=2)
        return seats

    async def gang(self, gang: str = "g", *, ranks: int = 1, generation: int = 1, **more: Any) -> list[Seat]:
        """Hold, commit and form. Returns the seats."""
        seats = await self.committed(gang, ranks=ranks, generation=generation)
        answer = await self.form(seats, gang, generation=generation, **more)
        assert (answer["formed"], answer["reason"]) == (True, None)
        return seats

    async def teardown(self, gang: str = "g", *, generation: int = 1, **more: Any) -> dict[str, Any]:
        return await self.ask(
            "teardown", **{"gang": gang, "generation": generation, "reason": "released", "grace_s": 1.0, **more}
        )

    async def ping(self, **gangs: int) -> dict[str, int]:
        answer = await self.ask("ping", gangs=gangs)
        missing = answer["missing"]
        assert isinstance(missing, dict)
        return missing


def load_of(rig: Rig) -> tuple[int, int]:
    """Running and reserved slots; the accounting is checked as well."""
    rig.worker.core.check()
    load = rig.worker.core.load
    return load.running, load.reserved
