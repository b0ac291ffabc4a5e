"""The same users and permissions as `nats_config` writes, as JWTs of an operator, its accounts and their users.

Permissions stand in the account's JWT, which the server has: each user has a signing key of its own there, with a
template of what the user may do. So a user whose permissions change keeps its credentials, and one who is left out is
refused as soon as the servers have the new configuration, whatever credentials it still has.

An account exports only to those who show an activation token, and each token is for one account and one subject. What
Gangline's account exports does not depend on its tenants: a server that gets a changed account drops all answers that
are on their way through its exports.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from ..errors.base import InvalidRequest
from ..names import Names
from .nats_config import ACCOUNT, ANSWERS_WITHIN_S, Import, imports_of, limits_of, tenants_of
from .roles import ANY_INBOX, Role, User, covers

SYSTEM: Final = "SYS"
_UNLIMITED: Final = -1
_ANYBODY: Final = "anybody"
_STORAGE: Final = {"memory": "mem_storage", "store": "disk_storage", "streams": "streams", "consumers": "consumer"}
_WRITTEN: Final = {"connections": "conn", "subscriptions": "subs", "payload": "payload", **_STORAGE}
"""Limits -> their names in JWTs."""


class Signer(Protocol):
    """An nkey pair."""

    @property
    def public(self) -> str: ...

    def sign(self, data: bytes) -> bytes: ...


class SeededKey(Protocol):
    """An nkey pair with its secret."""

    @property
    def public(self) -> str: ...

    @property
    def seed(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtKeys:
    """Who signs what. Accounts are known by their public keys: with new ones, streams are lost."""

    operator: Signer
    accounts: Mapping[str, Signer]
    """By name: Gangline's account, SYS and each tenant."""
    users: Mapping[str, Sequence[str]]
    """Public keys of each user's own signing keys: that of its credentials, and that of the credentials which these
    have replaced, while both are to be valid."""


@dataclass(slots=True, kw_only=True)
class _Account:
    users: Sequence[User] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    jetstream: bool = False
    exports: list[tuple[str, str]] = field(default_factory=list)
    """Kind and subject."""
    imports: list[tuple[str, Import]] = field(default_factory=list)
    """From which account, and what."""


def accounts_of(users: Sequence[User], account: str = ACCOUNT) -> tuple[str, ...]:
    """Names of the accounts that need keys.

    Raises:
        InvalidRequest: as `account_jwts`.
    """
    return (account, SYSTEM, *tenants_of(users, account))


def account_jwts(
    names: Names,
    users: Sequence[User],
    keys: JwtKeys,
    *,
    issued_at: int,
    account: str = ACCOUNT,
    limits: Iterable[tuple[str, str, int]] = (),
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The JWT of each account, by its name.

    Args:
        issued_at: Unix time.
        account, limits: as `configuration` in nats_config.
        earlier: the JWTs that accounts had before, by public key. An account that has not changed keeps its own.

    Raises:
        InvalidRequest: as `configuration` in nats_config.
    """

    def issued(name: str, found: _Account, at: int) -> str:
        claims = _claims(name, found, names, keys, at)
        return encode_jwt(keys.accounts[name].public, name, keys.operator, claims, issued_at=at)

    tokens = dict[str, str]()
    for name, found in _accounts(names, users, account, limits).items():
        was, at = earlier.get(keys.accounts[name].public), issued_at
        if was is not None:
            before = int(claims_in(was).get("iat", 0))
            if issued(name, found, before) == was:  # signatures are deterministic
                tokens[name] = was
                continue
            # Later than that one and than `without_services` of this one: servers compare these times.
            at = max(issued_at, before + 2)
        tokens[name] = issued(name, found, at)
    return tokens


def without_services(token: str, operator: Signer) -> str:
    """The JWT of an account without its imports of services, issued before the given one.

    A server that gets a changed account adds the new imports before it removes the old ones, and meanwhile delivers
    each request twice. If it first gets this JWT, requests find no responders meanwhile.
    """
    claims = claims_in(token)
    nats = dict(claims["nats"])
    nats["imports"] = [each for each in nats["imports"] if each["type"] != "service"]
    return encode_jwt(claims["sub"], claims["name"], operator, nats, issued_at=claims["iat"] - 1)


def services_of(token: str) -> set[str]:
    """The subjects of services that an account imports."""
    return {each["subject"] for each in claims_in(token)["nats"]["imports"] if each["type"] == "service"}


def tokens_in(configuration: str) -> dict[str, str]:
    """The JWTs of accounts in the text of `resolver_configuration`, by public key."""
    return dict(re.findall(r"^  (A[A-Z2-7]{55}): (\S+)$", configuration, re.MULTILINE))


def resolver_configuration(
    keys: JwtKeys, accounts: Mapping[str, str], *, command: str = "", directory: str = ""
) -> str:
    """A file to include in a nats-server's configuration: the operator, and all accounts.

    Args:
        accounts: see `account_jwts`.
        command: the command that generates the file, shown at its top.
        directory: where the servers keep the accounts, so that they can be changed while the servers run. Empty: they
            have those of this file only.
    """
    about = {"type": "operator", "version": 2, "system_account": keys.accounts[SYSTEM].public}
    # Always the same: the server does not reload a configuration with another operator.
    operator = encode_jwt(keys.operator.public, "gangline", keys.operator, about, issued_at=None)
    kept = f'{{ type: full, dir: "{directory}", allow_delete: true, interval: "2m" }}' if directory else "MEMORY"
    lines = [
        "# The operator and the accounts of a nats-server, by the roles of their users in Gangline. Generated by:",
        f"#   {command or 'gangline roles --jwt FOLDER'}",
        "#",
        "# Add it to the server's configuration with `include`. It has no secrets.",
        f"operator: {operator}",
        f"system_account: {keys.accounts[SYSTEM].public}",
        f"resolver: {kept}",
        "resolver_preload: {",
    ]
    for name, token in accounts.items():
        lines += [f"  # {name}", f"  {keys.accounts[name].public}: {token}"]
    return "\n".join([*lines, "}", ""])


CLAIMS_UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
CLAIMS_LIST: Final = "$SYS.REQ.CLAIMS.LIST"
CLAIMS_DELETE: Final = "$SYS.REQ.CLAIMS.DELETE"


def claims_lookup(account: str) -> str:
    """Subject that asks for the JWT of an account, given by its public key."""
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"


def updater_credentials(system: Signer, own: SeededKey, *, issued_at: int) -> str:
    """The text of a `.creds` file of the user who changes the accounts of running servers, and may do nothing else.

    Args:
        system: key of the account SYS.
        own: the user's own key.
    """
    about = {
        "type": "user",
        "version": 2,
        **dict.fromkeys(("subs", "data", "payload"), _UNLIMITED),
        "pub": {"allow": [CLAIMS_UPDATE, CLAIMS_LIST, CLAIMS_DELETE, claims_lookup("*")]},
        "sub": {"allow": [ANY_INBOX]},
    }
    return creds_file(encode_jwt(own.public, "gangline-roles", system, about, issued_at=issued_at), own.seed)


def deletion_jwt(operator: Signer, accounts: Sequence[str], *, issued_at: int) -> str:
    """What has a server forget these accounts, given by their public keys."""
    about = {"type": "generic", "version": 2, "accounts": list(accounts)}
    return encode_jwt(operator.public, "gangline", operator, about, issued_at=issued_at)


def credentials(
    user: User, account: str, own: SeededKey, signer: Signer, *, issued_at: int, expires_at: int | None = None
) -> str:
    """The text of a `.creds` file.

    Args:
        account: public key of the user's account.
        own: the user's own key.
        signer: the user's signing key; nobody needs it again.
        expires_at: Unix time; None: it does not end.
    """
    about = {"type": "user", "version": 2, "issuer_account": account}
    token = encode_jwt(own.public, user.name, signer, about, issued_at=issued_at, expires_at=expires_at)
    return creds_file(token, own.seed)


def creds_file(token: str, seed: str) -> str:
    """A user's JWT and seed, as all NATS clients read them."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "The seed is a secret: whoever has it is this user.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def claims_of(credentials: str) -> dict[str, Any]:
    """The claims in a `.creds` file; no signature is checked.

    Raises:
        InvalidRequest: it is no such file.
    """
    try:
        claims = claims_in(credentials.split("-----\n", 1)[1].split("\n", 1)[0])
        claims["iss"], claims["nats"]["issuer_account"]
    except (IndexError, ValueError, KeyError, TypeError):
        raise InvalidRequest("this is no file of credentials: remove it, and run the command again") from None
    return claims


def is_due(claims: Mapping[str, Any], now: float, days: int | None) -> bool:
    """Whether credentials are to be renewed: they have ended, or will when less than a third of their lifetime is left.

    Args:
        claims: see `claims_of`.
        days: lifetime of new ones; None: that of these.
    """
    if "exp" not in claims:
        return False
    lifetime_s = claims["exp"] - claims.get("iat", claims["exp"]) if days is None else days * _DAY_S
    return bool(claims["exp"] - now < lifetime_s / 3)


_DAY_S: Final = 86_400


def claims_in(token: str) -> dict[str, Any]:
    """The claims of a JWT; no signature is checked."""
    return dict(json.loads(_decoded(token.split(".")[1])))


def encode_jwt(
    subject: str,
    name: str,
    signer: Signer,
    nats: Mapping[str, Any],
    *,
    issued_at: int | None,
    expires_at: int | None = None,
) -> str:
    """A JWT as NATS has them: version 2, signed with an nkey."""
    claims: dict[str, Any] = {"iss": signer.public, "name": name, "sub": subject, "nats": nats}
    claims |= {key: value for key, value in (("iat", issued_at), ("exp", expires_at)) if value is not None}
    digest = hashlib.sha256(json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    body = f"{_encoded_json({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded_json(claims)}"
    return f"{body}.{_encoded(signer.sign(body.encode()))}"


def _accounts(
    names: Names, users: Sequence[User], account: str, limits: Iterable[tuple[str, str, int]]
) -> dict[str, _Account]:
    tenants = tenants_of(users, account)
    limited = limits_of(tenants, account, limits)
    broken = "$SYS.ACCOUNT.*.DISCONNECT"
    own = _Account(
        users=[user for user in users if not user.tenant],
        limits=limited[account],
        jetstream=True,
        exports=_exports(names, users),
        imports=[(SYSTEM, Import("stream", broken, broken))],
    )
    found = {account: own, SYSTEM: _Account(exports=[("stream", broken)])}
    for tenant, its in tenants.items():
        imported = {(each.kind, each.subject): each for each in imports_of(its, names, users)}
        found[tenant] = _Account(
            users=its, limits=limited[tenant], imports=[(account, imported[each]) for each in _widest(imported)]
        )
    return found


def _exports(names: Names, users: Sequence[User]) -> list[tuple[str, str]]:
    """Kind and subject of all that a tenant may import, whatever its users and its name."""
    anybody = User(name=_ANYBODY, roles=(Role.PRODUCER, Role.OWNER, Role.WORKER), tenant=_ANYBODY)
    of_one = f".@{_ANYBODY}"
    found = [
        (each.kind, f"{each.subject.removesuffix(of_one)}.*" if each.subject.endswith(of_one) else each.subject)
        for each in imports_of([anybody], names, users)
    ]
    return _widest(dict.fromkeys(found))


def _widest(shared: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without those that another of the same kind includes: the server refuses accounts with both."""
    every = list(shared)
    return [
        (kind, subject)
        for kind, subject in every
        if not any(kind == other and subject != wider and covers(wider, subject) for other, wider in every)
    ]


def _claims(name: str, account: _Account, names: Names, keys: JwtKeys, issued_at: int) -> dict[str, Any]:
    usual = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    limits: dict[str, Any] = dict.fromkeys((*usual, *(_STORAGE.values() if account.jetstream else ())), _UNLIMITED)
    limits |= {_WRITTEN[limit]: number for limit, number in account.limits.items()}
    return {
        "type": "account",
        "version": 2,
        "limits": {**limits, "wildcards": True},
        "exports": [_export(kind, subject) for kind, subject in account.exports],
        "imports": [
            _import(each, keys.accounts[exporter], keys.accounts[name].public, issued_at)
            for exporter, each in account.imports
        ],
        "signing_keys": [_scope(user, names, key) for user in account.users for key in keys.users[user.name]],
    }


def _export(kind: str, subject: str) -> dict[str, Any]:
    export: dict[str, Any] = {"name": subject, "subject": subject, "type": kind, "token_req": True}
    if kind == "service":
        export |= {"response_type": "Singleton", "response_threshold": ANSWERS_WITHIN_S * 1_000_000_000}
    return export


def _import(each: Import, exporter: Signer, importer: str, issued_at: int) -> dict[str, Any]:
    found = {
        "name": each.local,
        "subject": each.subject,
        "account": exporter.public,
        "type": each.kind,
        "token": _activation(exporter, importer, each.kind, each.subject, issued_at),
    }
    if each.local != each.subject:
        numbers = itertools.count(1)
        found["local_subject"] = re.sub(r"\*", lambda _: f"${next(numbers)}", each.local)
    return found


def _activation(exporter: Signer, importer: str, kind: str, subject: str, issued_at: int) -> str:
    about = {"type": "activation", "version": 2, "subject": subject, "kind": kind}
    return encode_jwt(importer, subject, exporter, about, issued_at=issued_at)


def _scope(user: User, names: Names, key: str) -> dict[str, Any]:
    allowed = user.permissions(names)
    template: dict[str, Any] = {
        **dict.fromkeys(("subs", "data", "payload"), _UNLIMITED),
        "pub": {"allow": list(allowed.publish)},
        "sub": {"allow": list(allowed.subscribe)},
    }
    if allowed.answers_s:
        template["resp"] = {"max": 1, "ttl": allowed.answers_s * 1_000_000_000}
    return {"kind": "user_scope", "key": key, "role": user.name, "template": template}


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _encoded_json(value: Mapping[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
