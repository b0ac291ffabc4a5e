"""docs/explanation/threat-model.md says what the permissions of one account do not prevent: each line of it is tried
here. A line that no longer holds goes from the page, and from here."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline.bus.jetstream.api import TOO_MANY_BATCHES
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, Storage
from gangline.bus.port.key_value import KeyValue
from gangline.schemas.names import Names

from ..bus.conftest import collect
from ..waiting import PATIENCE_S, until, until_read
from .conftest import Site, cut

pytestmark = pytest.mark.server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "threat-model.md"
API = "$JS.API"
INCOMPLETE_BATCH = 10176
"""The server's error number for the end of a batch whose beginning it did not take."""
USERS = (
    *("operator", "router", "gateway", "dispatcher", "coordinator", "observer"),
    *("producer=producer:invoices", "worker=worker:images.w1", "web@shop=producer:invoices"),
)


@dataclass
class Account:
    """One account, with a dispatcher."""

    site: Site
    operator: NatsBus
    ledger: KeyValue
    results: KeyValue

    async def ask(self, bus: NatsBus, subject: str, body: Any = None, **headers: str) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads((await bus.request(subject, data, headers=headers, timeout_s=PATIENCE_S)).data)

    async def replaced(self, bucket: KeyValue, key: str, attack: Callable[[str], None]) -> bool:
        """Whether an attack, which gets the key's subject, replaces somebody's record."""
        await bucket.put(key, b"theirs")
        attack(f"$KV.{bucket.name}.{key}")
        await until_read(lambda: bucket.get(key), lambda entry: entry is None or entry.value != b"theirs")
        return True


async def records_are_replaced(account: Account, bus: NatsBus) -> bool:
    def by_an_answer(target: str) -> None:
        bus.publish(f"{API}.INFO", reply=target)

    leader = await account.replaced(account.ledger, "leader", by_an_answer)
    return leader and await account.replaced(account.results, "result.theirs", by_an_answer)


async def records_are_replaced_by_an_acknowledgement(account: Account, bus: NatsBus) -> bool:
    def by_an_acknowledgement(target: str) -> None:
        bus.publish("gangline.task.invoices.x", b"[]", reply=target)

    return await account.replaced(account.results, "result.theirs", by_an_acknowledgement)


async def others_are_read(account: Account, bus: NatsBus) -> bool:
    await account.ask(account.operator, "gangline.task.nowhere.x", "theirs")
    await account.results.put("result.theirs", b"theirs")
    found = []
    for stream, subject in (
        ("GANGLINE_TASKS", "gangline.task.nowhere.x"),
        (f"KV_{account.results.name}", f"$KV.{account.results.name}.result.theirs"),
    ):
        answer = await account.ask(bus, f"{API}.STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        found.append(base64.b64decode(answer["message"]["data"]))
    return found == [b'"theirs"', b"theirs"]


async def a_message_id_is_taken(account: Account, bus: NatsBus) -> bool:
    taken = {"Nats-Msg-Id": f"invoice-{id(bus)}"}
    await account.ask(bus, "gangline.task.invoices.x", [], **taken)
    stored = await account.ask(account.operator, "gangline.task.nowhere.x", [], **taken)
    return stored.get("duplicate") is True


async def progress_is_forged(account: Account, bus: NatsBus) -> bool:
    subject = "gangline.job.images.theirs.progress"
    return "error" not in await account.ask(bus, subject, {"job": "images.theirs", "value": 1})


async def batches_are_kept_open(account: Account, bus: NatsBus) -> bool:
    for number in range(50):  # the most that a stream has
        headers = {"Nats-Batch-Id": f"open-{number}", "Nats-Batch-Sequence": "1"}
        bus.publish(f"$KV.{account.ledger.name}.alive.images.w1", b"{}", headers=headers)
    await bus.flush()
    mine = f"$KV.{account.ledger.name}.gang.mine"
    account.operator.publish(mine, b"{}", headers={"Nats-Batch-Id": "mine", "Nats-Batch-Sequence": "1"})
    last = {"Nats-Batch-Id": "mine", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
    answer = await account.ask(account.operator, mine, {}, **last)
    return answer.get("error", {}).get("err_code") in (TOO_MANY_BATCHES, INCOMPLETE_BATCH)


async def streams_are_deleted(account: Account, bus: NatsBus) -> bool:
    await account.ask(account.operator, "gangline.task.nowhere.x", "theirs")
    headers = {"Nats-Batch-Id": f"evil-{id(bus)}", "Nats-Batch-Sequence": "1"}
    own = "alive.images.w1" if bus.name == "worker" else "leader"
    target = f"{API}.STREAM.PURGE.GANGLINE_TASKS"
    bus.publish(f"$KV.{account.ledger.name}.{own}", b"{}", reply=target, headers=headers)
    info = functools.partial(account.ask, account.operator, f"{API}.STREAM.INFO.GANGLINE_TASKS")
    await until_read(info, lambda found: found["state"]["messages"] == 0)
    return True


async def answers_are_forged(account: Account, bus: NatsBus) -> bool:
    heard, asked = collect(), f"_INBOX.operator.asked-{id(bus)}"
    await account.operator.subscribe(asked, heard)
    await account.operator.flush()
    bus.publish(asked, b"forged")
    return [message.data for message in await heard.count(1)] == [b"forged"]


async def inboxes_are_stored(account: Account, bus: NatsBus) -> bool:
    config = (await account.ask(bus, f"{API}.STREAM.INFO.GANGLINE_DEAD"))["config"]
    widened = {**config, "subjects": [*config["subjects"], "_INBOX.worker.>", "other.>"]}
    assert "error" not in await account.ask(bus, f"{API}.STREAM.UPDATE.GANGLINE_DEAD", widened)
    worker = await account.site.bus("worker")
    worker.publish("_INBOX.worker.x", b"theirs")
    await worker.flush()

    async def stored() -> bool:
        answer = await account.ask(bus, f"{API}.STREAM.MSG.GET.GANGLINE_DEAD", {"last_by_subj": "_INBOX.worker.x"})
        return "message" in answer and base64.b64decode(answer["message"]["data"]) == b"theirs"

    await until(stored)
    return True


Attack = Callable[[Account, NatsBus], Awaitable[bool]]
READ = "read the arguments of all waiting tasks, and all results"
ID = "use a `Nats-Msg-Id` that it can guess before its owner does: the server drops the owner's message"
HOLES: dict[str, Attack] = {
    "producer, router, gateway, worker, dispatcher, coordinator, observer"
    " | replace any record with an answer from JetStream: the leader's, or a result": records_are_replaced,
    "producer | replace any record with an acknowledgement": records_are_replaced_by_an_acknowledgement,
    f"producer, observer | {READ}": others_are_read,
    f"producer | {ID}": a_message_id_is_taken,
    "worker | report progress of any job": progress_is_forged,
    "worker, coordinator | have the server delete or purge any stream of the account, by a batch on the ledger": (
        streams_are_deleted
    ),
    "worker | keep 50 atomic batches open: meanwhile no gang is formed or ended": batches_are_kept_open,
    "gateway, worker, coordinator | answer other users' requests, if they know the reply subject": answers_are_forged,
    "operator | have a stream store what any user of the account receives, in other namespaces too": inboxes_are_stored,
}
OF_TENANTS: dict[str, Attack] = {READ: others_are_read, ID: a_message_id_is_taken}


async def account_of(site_of: Callable[[str], Site]) -> Account:
    site = site_of(cut(*USERS))
    await site.dispatcher()
    operator = await site.bus("operator")
    ledger = await operator.bucket(Names().ledger_bucket, BucketSettings(), make=False)
    return Account(site, operator, ledger, await operator.bucket(Names().results_bucket, BucketSettings(), make=False))


async def test_the_page_says_what_the_lists_of_one_account_do_not_prevent(site_of):
    account = await account_of(site_of)
    for line, attack in HOLES.items():
        for user in line.partition(" | ")[0].split(", "):
            assert await attack(account, await account.site.bus(user)), f"no longer: {user}: {line}"
    assert await account.site.refused() == [], "the server sees nothing in it"


async def test_an_answer_or_an_acknowledgement_is_no_request(site_of):
    account = await account_of(site_of)
    await account.site.worker("w1")
    producer, stats = await account.site.bus("producer"), "gangline.worker.images.w1.stats"
    before = await account.ask(account.operator, stats, {})
    await account.ask(account.operator, "gangline.task.nowhere.x", [])
    heard = collect()
    await account.operator.subscribe("gangline.worker.images.w1.*", heard)
    await account.operator.flush()
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
    names = await account.ask(account.operator, f"{API}.STREAM.NAMES")
    assert {"GANGLINE_TASKS", "GANGLINE_JOBS"} <= set(names["streams"])
    first = {"last_by_subj": "gangline.task.nowhere.x"}
    assert "error" not in await account.ask(account.operator, f"{API}.STREAM.MSG.GET.GANGLINE_TASKS", first)
    after = await account.ask(account.operator, stats, {})
    assert after["load"] == before["load"]
    assert await account.site.refused() == []


async def test_the_page_says_what_is_left_to_a_tenant(site_of):
    account = await account_of(site_of)
    web = await account.site.bus("web")
    for what, attack in OF_TENANTS.items():
        assert await attack(account, web), f"no longer: {what}"
    assert await account.site.refused() == []


def rows(heading: str) -> list[str]:
    """Of the table under that heading, without its head."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!.*-\|$)(.*) \|$", section, re.MULTILINE)[1:]


def test_the_page_has_these_lines_and_no_others():
    assert rows("What lists do not prevent") == list(HOLES)
    assert rows("What a producer can still do from its own account") == list(OF_TENANTS)


# -- replies ----------------------------------------------------------------------------------------------------------


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
