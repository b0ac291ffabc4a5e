"""Nkeys, and a `.creds` file with the server configuration that trusts it, as `nsc` generates them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys


def make_key(prefix: int) -> tuple[bytes, str]:
    """Seed and public key."""
    seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))
    pair = nkeys.from_seed(bytearray(seed))
    return seed, pair.public_key.decode()


def _encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def make_jwt(subject: str, name: str, issuer_seed: bytes, issuer: str, nats: dict[str, Any]) -> str:
    claims: dict[str, Any] = {"iat": int(time.time()), "iss": issuer, "name": name, "sub": subject, "nats": nats}
    digest = hashlib.sha256(json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    body = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(claims)}"
    signature = nkeys.from_seed(bytearray(issuer_seed)).sign(body.encode())
    return f"{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def make_credentials(folder: Path) -> tuple[Path, str]:
    """A credentials file, and the configuration of a server with an operator that knows its account."""
    operator_seed, operator = make_key(nkeys.PREFIX_BYTE_OPERATOR)
    account_seed, account = make_key(nkeys.PREFIX_BYTE_ACCOUNT)
    user_seed, user = make_key(nkeys.PREFIX_BYTE_USER)
    nothing = -1
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), nothing)
    operator_jwt = make_jwt(operator, "O", operator_seed, operator, {"type": "operator", "version": 2})
    account_jwt = make_jwt(
        account,
        "A",
        operator_seed,
        operator,
        {"type": "account", "version": 2, "limits": {**limits, "wildcards": True}},
    )
    user_jwt = make_jwt(
        user,
        "U",
        account_seed,
        account,
        {"type": "user", "version": 2, "subs": nothing, "data": nothing, "payload": nothing, "pub": {}, "sub": {}},
    )
    file = folder / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user_seed.decode()}\n------END USER NKEY SEED------\n"
    )
    config = f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {account}: {account_jwt} }}\n"
    return file, config
