"""Reads the contexts and environment variables of the `nats` CLI.

Contexts live in `$XDG_CONFIG_HOME/nats/context/<name>.json` (`~/.config` if unset); the name of the selected one is in
`$XDG_CONFIG_HOME/nats/context.txt`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...schemas.errors.base import InvalidSettings

_FROM_CONTEXT: Final = {
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "credentials_file",
    "nkey": "nkey_file",
    "ca": "tls_ca",
    "cert": "tls_certificate",
    "key": "tls_key",
    "inbox_prefix": "inbox_prefix",
    "tls_first": "tls_first",
}
_FROM_ENVIRONMENT: Final = {
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CREDS": "credentials_file",
    "NATS_NKEY": "nkey_file",
    "NATS_CA": "tls_ca",
    "NATS_CERT": "tls_certificate",
    "NATS_KEY": "tls_key",
    # The `nats` CLI has no variable for it.
    "GANGLINE_INBOX_PREFIX": "inbox_prefix",
}
_NOT_SUPPORTED: Final = {
    "nsc": "write a credentials file with `nsc generate creds` and name it in `creds`",
    "user_jwt": "write the JWT and the seed into a file and name it in `creds`",
    "user_seed": "write the JWT and the seed into a file and name it in `creds`",
    "socks_proxy": "connect without a proxy",
    "jetstream_domain": "connect to a server of that domain",
    "jetstream_api_prefix": "use an account of its own, without a mapped JetStream API",
    "windows_cert_store": "export the certificate to PEM files and name them in `cert` and `key`",
}
_IDENTITIES: Final = ("credentials_file", "nkey_file", "user", "password", "token")


def config_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where the `nats` CLI keeps its configuration."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "nats"


def selected_context(environ: Mapping[str, str] | None = None) -> str | None:
    """Name of the context chosen by `nats context select`, or None."""
    try:
        return (config_folder(environ) / "context.txt").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def context_names(environ: Mapping[str, str] | None = None) -> list[str]:
    """All contexts, sorted."""
    return sorted(path.stem for path in (config_folder(environ) / "context").glob("*.json"))


def context_fields(name: str | None = None, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fields of ConnectionSettings from a context.

    Raises:
        InvalidSettings: the context does not exist, is unreadable, or needs something that is not supported.
    """
    if name is None:
        name = selected_context(environ)
        if name is None:
            raise InvalidSettings(
                f"no nats context is selected: run `nats context select`, or name one of {_listed(environ)}"
            )
    if not name or "/" in name or os.sep in name or name.startswith("."):
        raise InvalidSettings(f"nats context {name!r} is not a name: known are {_listed(environ)}")
    path = config_folder(environ) / "context" / f"{name}.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidSettings(
            f"nats context {name!r} does not exist ({path}): known are {_listed(environ)}; make it with "
            f"`nats context add {name}`"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"nats context {name!r} cannot be read ({path}: {error}): repair the file") from error
    if not isinstance(values, dict):
        raise InvalidSettings(f"nats context {name!r} is not a JSON object ({path}): repair the file")
    return _translate(name, values)


def _translate(name: str, values: dict[str, Any]) -> dict[str, Any]:
    for key, advice in _NOT_SUPPORTED.items():
        if values.get(key):
            raise InvalidSettings(f"nats context {name!r} uses {key!r}, which is not supported: {advice}")
    found: dict[str, Any] = {ours: values[theirs] for theirs, ours in _FROM_CONTEXT.items() if values.get(theirs)}
    if values.get("url"):
        found["urls"] = _split(str(values["url"]))
    return _bare_user_is_a_token(found)


def environment_fields(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fields of ConnectionSettings from the environment and the selected context; see
    ConnectionSettings.from_environment."""
    environ = os.environ if environ is None else environ
    fields: dict[str, Any] = {}
    chosen = environ.get("NATS_CONTEXT")
    if not chosen and not environ.get("NATS_URL"):
        chosen = selected_context(environ)
    if chosen:
        fields = context_fields(chosen, environ)
    given = {ours: environ[theirs] for theirs, ours in _FROM_ENVIRONMENT.items() if environ.get(theirs)}
    if any(name in given for name in _IDENTITIES):
        # An identity from the environment replaces the context's, whatever its kind.
        fields = {name: value for name, value in fields.items() if name not in _IDENTITIES}
    fields.update(given)
    if environ.get("NATS_URL"):
        fields["urls"] = _split(environ["NATS_URL"])
    return _bare_user_is_a_token(fields)


def _bare_user_is_a_token(fields: dict[str, Any]) -> dict[str, Any]:
    """Like the `nats` CLI, treat a user without a password as a token."""
    if fields.get("user") and not fields.get("password") and not fields.get("token"):
        fields["token"] = fields.pop("user")
    return fields


def _split(urls: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in urls.split(",") if part.strip())


def _listed(environ: Mapping[str, str] | None) -> str:
    return ", ".join(repr(name) for name in context_names(environ)) or "none so far"
