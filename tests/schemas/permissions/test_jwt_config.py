"""Accounts as JWTs: what changes them, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gangline.bus.settings.keys import KeyKind, KeyPair
from gangline.schemas.names import Names
from gangline.schemas.permissions.jwt_config import (
    JwtKeys,
    account_jwts,
    accounts_of,
    claims_in,
    resolver_configuration,
    services_of,
    tokens_in,
    without_services,
)
from gangline.schemas.permissions.nats_config import parse_user

OWN = ("gateway", "dispatcher", "coordinator", "operator", "worker", "router")
TENANTS: dict[str, Sequence[str]] = {
    "nobody": (),
    "a producer": ("web@shop=producer",),
    "a producer of one endpoint": ("web@shop=producer:images",),
    "a worker": ("w@shop=worker:images.w1",),
    "an owner of one pool": ("o@shop=owner:train",),
    "several": ("web@shop=producer+owner:images", "w@lab=worker", "batch@lab=producer:video"),
}


class Signing:
    """Keys for whoever needs them."""

    def __init__(self) -> None:
        self._operator = KeyPair.new(KeyKind.OPERATOR)
        self._accounts: dict[str, KeyPair] = {}
        self._users: dict[str, list[str]] = {}

    def tokens(self, *users: str, at: int = 1_000, earlier: dict[str, str] | None = None) -> dict[str, str]:
        """By account."""
        return account_jwts(Names(), [*map(parse_user, users)], self.of(*users), issued_at=at, earlier=earlier or {})

    def of(self, *users: str) -> JwtKeys:
        found = [*map(parse_user, users)]
        for name in accounts_of(found):
            self._accounts.setdefault(name, KeyPair.new(KeyKind.ACCOUNT))
        for user in found:
            self._users.setdefault(user.name, [KeyPair.new(KeyKind.ACCOUNT).public])
        return JwtKeys(operator=self._operator, accounts=self._accounts, users=self._users)

    def by_key(self, tokens: dict[str, str]) -> dict[str, str]:
        return {self._accounts[name].public: token for name, token in tokens.items()}


@pytest.fixture
def signing() -> Signing:
    return Signing()


def _covers(pattern: str, subject: str) -> bool:
    wide, narrow = pattern.split("."), subject.split(".")
    if wide[-1] == ">":
        return len(narrow) >= len(wide) and all(map(_token_covers, wide[:-1], narrow))
    return len(wide) == len(narrow) and all(map(_token_covers, wide, narrow))


def _token_covers(wide: str, narrow: str) -> bool:
    return narrow != ">" and wide in ("*", narrow)


@pytest.mark.parametrize("who", TENANTS)
def test_tenants_change_neither_the_account_of_gangline_nor_that_of_the_server(signing: Signing, who: str) -> None:
    """Else the server would drop the answers to all tenants that are on their way."""
    alone, beside = signing.tokens(*OWN), signing.tokens(*OWN, *TENANTS[who])
    assert (beside["GANGLINE"], beside["SYS"]) == (alone["GANGLINE"], alone["SYS"])


@pytest.mark.parametrize("who", [who for who in TENANTS if TENANTS[who]])
def test_all_that_a_tenant_imports_is_exported(signing: Signing, who: str) -> None:
    tokens = signing.tokens(*OWN, *TENANTS[who])
    exports = [(each["type"], each["subject"]) for each in claims_in(tokens["GANGLINE"])["nats"]["exports"]]
    imports: list[dict[str, Any]] = [
        each
        for name, token in tokens.items()
        if name not in ("GANGLINE", "SYS")
        for each in claims_in(token)["nats"]["imports"]
    ]
    assert imports
    for each in imports:
        found = [subject for kind, subject in exports if kind == each["type"] and _covers(subject, each["subject"])]
        assert len(found) == 1, (each, found)


def test_an_account_that_has_not_changed_keeps_its_jwt(signing: Signing) -> None:
    users = (*OWN, "web@shop=producer:images", "batch@lab=producer")
    before = signing.tokens(*users)
    text = resolver_configuration(signing.of(*users), before)
    assert tokens_in(text) == signing.by_key(before)
    changed = (*OWN, "web@shop=producer:images", "batch@lab=producer:video", "late@extra=worker")
    after = signing.tokens(*changed, at=2_000, earlier=tokens_in(text))
    assert {name for name, token in after.items() if before.get(name) == token} == {"GANGLINE", "SYS", "shop"}
    assert {claims_in(after[name])["iat"] for name in ("lab", "extra")} == {2_000}


def test_a_changed_jwt_and_the_one_sent_before_it_are_newer_than_that_of_the_same_second(signing: Signing) -> None:
    """Servers that were down take the newest one."""
    before = signing.tokens(*OWN, "web@shop=producer", at=1_000)
    after = signing.tokens(*OWN, "web@shop=producer:images", at=1_000, earlier=signing.by_key(before))
    between = without_services(after["shop"], signing.of(*OWN).operator)
    times = [claims_in(token)["iat"] for token in (before["shop"], between, after["shop"])]
    assert times == sorted(set(times))


def test_without_services_all_else_stays(signing: Signing) -> None:
    token = signing.tokens(*OWN, "web@shop=producer+owner")["shop"]
    left = claims_in(without_services(token, signing.of(*OWN).operator))
    whole = claims_in(token)
    assert services_of(token) and {each["type"] for each in left["nats"]["imports"]} == {"stream"}
    streams = [each for each in whole["nats"]["imports"] if each["type"] == "stream"]
    assert left["nats"] == {**whole["nats"], "imports": streams}
    assert (left["sub"], left["name"], left["iss"]) == (whole["sub"], whole["name"], whole["iss"])
