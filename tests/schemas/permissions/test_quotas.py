from __future__ import annotations

import pytest

from gangline.schemas.errors.base import InvalidName, InvalidSettings
from gangline.schemas.permissions.quotas import Quota, parse_quotas

from ...support.rows import case


def test_a_quota_is_for_all_tenants_or_for_one():
    quotas = parse_quotas(["lab:gangs=4", "gangs=2", "gang_slots=16", "lab:preempt=yes", "shop:pools=train,eval"])
    assert quotas.of("lab") == Quota(gangs=4, gang_slots=16, preempt=True)
    assert quotas.of("shop") == Quota(gangs=2, gang_slots=16, pools=frozenset({"train", "eval"}))
    assert quotas.of("somebody") == Quota(gangs=2, gang_slots=16)


def test_a_tenant_is_known_by_the_key_of_its_account():
    lab, shop = (f"A{letter * 55}" for letter in "BC")
    quotas = parse_quotas([f"lab:account={lab}", f"shop:account={shop}", "lab:gangs=4", "gangs=2"])
    assert [quotas.tenant_of(account) for account in (lab, shop, "other", "")] == ["lab", "shop", "other", ""]
    assert [quotas.of(tenant) for tenant in ("lab", "shop")] == [Quota(gangs=4), Quota(gangs=2)]
    with pytest.raises(InvalidSettings, match="account of 'lab', too"):
        parse_quotas([f"lab:account={lab}", f"shop:account={lab}"])


def test_our_own_account_has_none():
    assert parse_quotas(["gangs=2"]).of("") is None


def test_a_tenant_without_quotas_has_no_rights():
    quota = parse_quotas([]).of("lab")
    assert quota is not None and (quota.priority, quota.preempt) == (0, False)


def test_what_cannot_be_understood_is_refused():
    cases = [
        ("gangs", "QUOTA=VALUE"),
        ("lab:houses=3", "quotas are gangs, "),
        ("lab:gangs=many", "lab:gangs=many.*write, for example, gangs=4"),
        ("lab:gangs=-1", "gangs is -1"),
        ("lab:gangs_waiting=0", "gangs_waiting is 0"),
        ("lab:priority=1000001", "priority is 1000001"),
        ("lab:preempt=perhaps", "preempt=yes"),
        ("lab:pools=a b", "pool"),
        ("a.b:gangs=1", "tenant"),
        ("lab:account=GANGLINE", "56 characters"),
        (f"account=A{55 * 'B'}", "names no tenant: write TENANT:account=AB"),
    ]
    for text, why in cases:
        with case(text, why), pytest.raises((InvalidSettings, InvalidName), match=why):
            parse_quotas([text])
