"""Ids that users type on a command line begin with a letter or a digit, whoever makes them: no command takes one for an
option. Public ids of leases begin with `~` (test_public_ids.py)."""

from __future__ import annotations

import itertools
import json
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.jobs.submitter import job_of_declared, job_of_key, task_message
from gangline.runtime.clock import Environment
from gangline.schemas.messages.jobs import title_of
from gangline.schemas.names import GangOperation, Names, job_of_tenant
from gangline.testing import cluster
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool

from ..scale import repetitions

POOL = Pool("p", slots=4)


def begins_well(id: str) -> bool:
    return id[0].isascii() and id[0].isalnum()


@settings(max_examples=repetitions(10, whole=100))
@given(st.text(max_size=12), st.sampled_from(["", "lab"]))
def test_a_job_or_schedule_has_an_id_that_is_no_option_whatever_its_key_and_token(key, tenant):
    for token in (Environment().token(), "-" * 22, "_" * 22):
        message = task_message(Names(), "p.go", (), {}, CallOptions(), token=token, wall=0.0, trace=None, tenant=tenant)
        ids = [message.job, job_of_key("p.go", key, tenant), job_of_declared("p", "go")]
        assert all(begins_well(id) and begins_well(id.partition(".")[2]) for id in ids), ids
        assert all(begins_well(job_of_tenant(id, "p", "lab")) for id in ids)
    assert begins_well(title_of("12", "p.nightly"))


@settings(max_examples=repetitions(10, whole=100))
@given(st.text(max_size=12))
def test_a_worker_without_a_name_gets_one_that_is_no_option_whatever_its_host_is_called(host):
    given_name, socket.gethostname = socket.gethostname, lambda: host
    try:
        assert begins_well(WorkerSettings().worker_name(Environment()))
    finally:
        socket.gethostname = given_name


async def test_a_gang_has_an_id_that_is_no_option_whatever_its_token_and_whoever_names_it():
    numbers = itertools.count()
    running = cluster(POOL, coordinator=True, ambient=Environment(token=lambda: f"-{next(numbers):021}"))
    async with running as client, client.gang(pool="p", size=1) as gang:
        bus, names = client.router.bus, client.router.names
        answer = await bus.request(names.gang(GangOperation.ACQUIRE), b'{"pool": "p", "size": 1}', timeout_s=30.0)
        assert begins_well(gang.id) and begins_well(json.loads(answer.data)["id"])


def test_dispatchers_and_audit_records_are_named_by_tokens_which_are_no_options():
    token = Environment().token
    assert all(begins_well(token()) for _ in range(2000))
