from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.schemas.errors.base import InvalidName
from gangline.schemas.limits import MAX_NAME_CHARS, MAX_TOKEN_CHARS
from gangline.schemas.names import (
    Names,
    Operation,
    WorkerId,
    check_job,
    check_name,
    is_job_of,
    job_endpoint,
    job_of_tenant,
    short_job,
    split_target,
)

from ..scale import repetitions
from ..support.rows import case

names = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
namespaces = st.from_regex(r"[a-z0-9_-]{1,32}", fullmatch=True)
BAD = ["", "a.b", "a b", "a*", ">", "a\n", "é", "a/b", "$a", " a", "a\0", "x" * (MAX_NAME_CHARS + 1)]
W1 = WorkerId("images", "w1")
FEW = settings(max_examples=repetitions(10, whole=settings().max_examples))


def test_a_name_that_cannot_be_one_token_of_a_subject_is_refused():
    for bad in BAD:
        with case(bad):
            with pytest.raises(InvalidName) as caught:
                check_name(bad, "pool")
            assert str(caught.value).startswith("pool ")


@pytest.mark.parametrize("kind", ["token", "rid"])
def test_tokens_and_request_ids_have_a_shorter_bound_than_names(kind):
    assert check_name("x" * MAX_TOKEN_CHARS, kind)
    with pytest.raises(InvalidName, match=f"at most {MAX_TOKEN_CHARS}"):
        check_name("x" * (MAX_TOKEN_CHARS + 1), kind)
    assert check_name("x" * MAX_NAME_CHARS, "pool")


def test_no_worker_id_can_be_made_that_does_not_fit_a_subject():
    for bad in BAD:
        with case(bad):
            with pytest.raises(InvalidName, match="pool"):
                WorkerId(bad, "w1")
            with pytest.raises(InvalidName, match="worker"):
                WorkerId("images", bad)


@pytest.mark.parametrize("bad", ["thumbnail", "", ".", "a.", ".b", "a.b.c", "a b.c"])
def test_a_target_is_two_names_joined_by_one_dot(bad):
    with pytest.raises(InvalidName):
        split_target(bad)


@pytest.mark.parametrize("bad", ["w1", "", "images.", ".w1", "images.w1.x"])
def test_a_worker_in_text_is_two_names_joined_by_one_dot(bad):
    with pytest.raises(InvalidName):
        WorkerId.parse(bad)


@given(namespaces, names, names)
@FEW
def test_a_call_subject_is_parsed_back_into_what_built_it(namespace, endpoint, method):
    subjects = Names(namespace)
    assert subjects.parse_call(subjects.call(endpoint, method)) == (endpoint, method)


@pytest.mark.parametrize("subject", ["gangline.call", "other.call.a.b", "gangline.call.a", "gangline.call.a.b.c", ""])
def test_a_subject_that_is_no_call_is_refused(subject):
    with pytest.raises(InvalidName):
        Names().parse_call(subject)


@given(names, names, st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
@FEW
def test_every_key_of_the_ledger_names_its_worker(pool, worker, token):
    keys = Names()
    who = WorkerId(pool, worker)
    for key in (keys.registration_key(who), keys.alive_key(who), keys.lease_key(who, token)):
        assert keys.parse_worker_key(key) == who
        assert re.fullmatch(r"[-/_=.a-zA-Z0-9]+", key), "JetStream takes no other characters in a key"


def test_a_key_that_is_none_of_ours_is_refused():
    cases = [
        "", "reg", "reg.a", "reg.a.b.c", "alive.a.b.c", "lease.a.b", "lease.a.b.c.d", "gang.a.b", "reg..b", "reg.a.",
    ]  # fmt: skip
    for key in cases:
        with case(key), pytest.raises(InvalidName):
            Names.parse_worker_key(key)


def test_the_subjects_and_keys_are_those_that_the_documentation_gives():
    assert Names().call("images", "thumbnail") == "gangline.call.images.thumbnail"
    assert Names().calls == "gangline.call.>"
    assert Names().worker(W1, Operation.DRAIN) == "gangline.worker.images.w1.drain"
    assert Names().worker_operations(W1) == "gangline.worker.images.w1.*"
    assert Names().worker_event(W1) == "gangline.event.worker.images.w1"
    assert Names().events == "gangline.event.>"
    assert Names().ledger_bucket == "GANGLINE_LEDGER"
    assert Names().registration_key(W1) == "reg.images.w1"
    assert Names().alive_key(W1) == "alive.images.w1"
    assert Names().lease_key(W1, "Q2xvc2Vk") == "lease.images.w1.e6tHD3xTyH_vNaSfQSDRlQ"
    assert Names().lease_key(W1, "~e6tHD3xTyH_vNaSfQSDRlQ") == "lease.images.w1.e6tHD3xTyH_vNaSfQSDRlQ"
    assert Names().registrations_of("images") == "reg.images.*"
    assert Names().alive_of() == "alive.*.*"
    assert Names().leases_of("images", "w1") == "lease.images.w1.*"


@pytest.mark.parametrize("bad", ["", "a.b", "Dev", "x y"])
def test_a_namespace_that_is_no_token_or_has_capitals_is_refused(bad):
    with pytest.raises(InvalidName, match="namespace"):
        Names(bad)


def test_members_of_a_gang_have_subjects_of_their_own_and_one_for_all():
    names_ = Names("prod")
    assert names_.gang_talk("g1", 2, 3, 0) == "prod.gang-talk.g1.2.3.0"
    assert names_.gang_talk("g1", 2, 3, None) == "prod.gang-talk.g1.2.3.all"
    assert names_.gang_event("g1") == "prod.event.gang.g1" and names_.gang_events == "prod.event.gang.*"
    with pytest.raises(InvalidName):
        names_.gang_talk("g.1", 1, 0, 0)


@FEW
@given(namespaces, names, names, names)
def test_private_subjects_are_not_heard_by_who_watches_the_namespace(namespace, pool, worker, channel):
    built, id = Names(namespace), WorkerId(pool, worker)
    subject = built.worker(id, Operation.FRAMES, channel)
    assert subject == f"_GANGLINE.{namespace}.worker.{pool}.{worker}.{channel}.frames"
    assert built.worker_operations(id, channel) == subject.removesuffix("frames") + "*"
    assert built.worker(id, Operation.FRAMES, "") == built.worker(id, Operation.FRAMES)
    for each in (subject, built.private(built.calls), *built.gang_subjects[1:2]):
        assert not each.startswith(f"{namespace}.") and each.startswith(f"_GANGLINE.{namespace}.")
    assert built.parse_call(built.private(built.call(pool, worker))) == (pool, worker)


def test_a_report_names_its_worker_in_the_subject():
    names_ = Names("prod")
    assert names_.gang_report("p", "w") == "prod.gang.report.p.w"
    assert names_.parse_gang("prod.gang.report.p.w") == ("report", WorkerId("p", "w"))
    for subject in ("prod.gang.renew", "_GANGLINE.prod.gang.renew"):
        assert names_.parse_gang(subject) == ("renew", None)
    with pytest.raises(InvalidName):
        names_.parse_gang("prod.gang.report.p")


def test_an_id_of_a_job_names_its_endpoint_or_none():
    for job in ("7", "order-7", "images.order-7"):
        assert check_job(job) == job and is_job_of(job, "images")
        assert Names().result_key(job) == f"result.{job}" and Names().job(job) == f"gangline.job.{job}.*"
    assert [job_endpoint(job) for job in ("order-7", "images.order-7")] == [None, "images"]
    assert not is_job_of("words.order-7", "images")
    for bad in ("", ".", "images.", ".order", "images.order.7", "images.*", "order 7"):
        assert not is_job_of(bad, "images")
        with pytest.raises(InvalidName):
            check_job(bad)


def test_the_id_of_a_tenants_job_names_the_tenant():
    assert job_of_tenant("images.order-7", "images", "shop") == "images.t4-shop-order-7"
    assert job_of_tenant("order-7", "images", "shop") == "images.t4-shop-order-7"
    assert short_job("images.t4-shop-order-7") == "images.order-7"
    for other in ("7", "order-7", "images.order-7", "images.t4-shop", "images.t9-shop-x", "images.t-x-y", "t4-shop-x"):
        assert short_job(other) == other


tenants = st.one_of(names, st.sampled_from(("shop", "shop-", "4-shop", "t4-shop-", "x" * MAX_NAME_CHARS)))


@FEW
@given(tenants, tenants, tenants, tenants)
def test_two_tenants_never_have_the_same_job_and_one_has_its_own_whatever_it_calls_it(one, other, job, another):
    ids = {tenant: job_of_tenant(id, "images", tenant) for tenant, id in ((one, job), (other, another))}
    assert len(set(ids.values())) == len(ids)
    for tenant, id in ids.items():
        assert is_job_of(id, "images") and check_job(id) == id
        assert job_of_tenant(id, "images", tenant) == id
        for stranger in {one, other} - {tenant}:
            assert job_of_tenant(id, "images", stranger) != id
