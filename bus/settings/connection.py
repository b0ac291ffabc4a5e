"""How to connect: addresses, identity, TLS and time limits; also from contexts and environment variables of the `nats`
CLI.

Contexts live in `$XDG_CONFIG_HOME/nats/context/<name>.json` (if unset, `.config` in the home of the user database); the
name of the selected one is in `$XDG_CONFIG_HOME/nats/context.txt`.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...schemas.errors.base import InvalidSettings
from ...schemas.text import plain

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
_SCHEMES: Final = ("nats", "tls")
_SECRETS: Final = frozenset({"password", "token", "user"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConnectionSettings:
    """Everything needed to connect to a NATS server. Validated at construction.

    Use `from_url`, `from_context` or `from_environment` unless you have all values at hand.

    Raises:
        InvalidSettings: a value is out of bounds, a file is missing, or two identities are given.
    """

    urls: tuple[str, ...] = (DEFAULT_URL,)
    """`nats://host:port` or `tls://host:port`, tried in random order. They may contain user and password."""
    credentials_file: Path | None = None
    """A `.creds` file: the JWT of a user, and its seed."""
    nkey_file: Path | None = None
    """A file with an nkey seed (`SU...`)."""
    user: str = ""
    """User name; empty: none."""
    password: str = ""
    """Password of `user`."""
    token: str = ""
    """Token, in place of a user; empty: none."""
    tls_ca: Path | None = None
    """PEM file of the authority that signed the server's certificate. Default: the system's authorities."""
    tls_certificate: Path | None = None
    """PEM file of the client certificate; requires `tls_key`."""
    tls_key: Path | None = None
    """PEM file of its private key; requires `tls_certificate`."""
    tls_first: bool = False
    """Do the TLS handshake before the server sends INFO (`handshake_first` in the server's configuration)."""
    name: str = ""
    """Name in the server's list of connections; `connect(name=...)` overrides it."""
    inbox_prefix: str = "_INBOX"
    """Prefix of the subjects for answers. A user who may subscribe only to `_INBOX.me.>` needs `_INBOX.me` here."""
    connect_timeout_s: float = 5.0
    """Timeout of the first connection, over all addresses; 0.1 to 300. Reconnecting never gives up."""
    wait_for_server: bool = True
    """Whether to keep trying for that long while the server refuses connections, since it may be about to start. False:
    fail as soon as every address has refused one."""
    storage_timeout_s: float = 5.0
    """Timeout of one operation on a bucket, after which it raises StorageUnavailable; 0.1 to 300."""
    ping_interval_s: float = 5.0
    """Interval of pings to the server; after two without an answer the client reconnects; 0.1 to 300. Shorter intervals
    detect a frozen server sooner, but cause false alarms over slow links."""
    reconnect_wait_s: float = 0.25
    """Wait before the same address is tried again, with 20 % of jitter; 0.01 to 60."""

    def __post_init__(self) -> None:
        if isinstance(self.urls, str):
            object.__setattr__(self, "urls", tuple(part.strip() for part in self.urls.split(",") if part.strip()))
        object.__setattr__(self, "urls", tuple(_checked_url(url) for url in self.urls))
        if not self.urls:
            raise InvalidSettings(f"urls is empty: give at least one address, for example {DEFAULT_URL!r}")
        for name in ("credentials_file", "nkey_file", "tls_ca", "tls_certificate", "tls_key"):
            object.__setattr__(self, name, _checked_file(name, getattr(self, name)))
        self._check_identity()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidSettings("tls_certificate and tls_key go together: give both, or neither")
        if not self.inbox_prefix or any(c in " \t\r\n*>" for c in self.inbox_prefix) or self.inbox_prefix[-1] == ".":
            raise InvalidSettings(
                f"inbox_prefix {self.inbox_prefix!r} is not a subject prefix: no spaces or wildcards, no dot at the end"
            )
        _check_range("connect_timeout_s", self.connect_timeout_s, 0.1, 300.0)
        _check_range("storage_timeout_s", self.storage_timeout_s, 0.1, 300.0)
        _check_range("ping_interval_s", self.ping_interval_s, 0.1, 300.0)
        _check_range("reconnect_wait_s", self.reconnect_wait_s, 0.01, 60.0)

    def _check_identity(self) -> None:
        given = [
            name
            for name, value in (
                ("credentials_file", self.credentials_file),
                ("nkey_file", self.nkey_file),
                ("user", self.user),
                ("token", self.token),
            )
            if value
        ]
        if len(given) > 1:
            raise InvalidSettings(f"{' and '.join(given)} are both given: a connection has one identity, keep one")
        if self.password and not self.user:
            raise InvalidSettings("password is given without user: give both, or use token")

    def __repr__(self) -> str:
        """Without secrets: no passwords or tokens, and no userinfo in addresses."""
        shown: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name in _SECRETS:
                value = "***"
            elif field.name == "urls":
                value = self.safe_urls
            shown.append(f"{field.name}={value!r}")
        return f"ConnectionSettings({', '.join(shown)})"

    @property
    def safe_urls(self) -> tuple[str, ...]:
        """The addresses without user and password; for logs and errors."""
        return tuple(_without_userinfo(url) for url in self.urls)

    @property
    def wants_tls(self) -> bool:
        """Whether to refuse a server that does not offer TLS."""
        return bool(
            self.tls_first or self.tls_ca or self.tls_certificate or any(url.startswith("tls://") for url in self.urls)
        )

    @property
    def files_that_end(self) -> list[tuple[str, Path]]:
        """Credentials and certificates, with what they are."""
        files = (
            ("credentials", self.credentials_file),
            ("certificate", self.tls_certificate),
            ("authority", self.tls_ca),
        )
        return [(kind, path) for kind, path in files if path is not None]

    def tls_context(self) -> ssl.SSLContext | None:
        """A context that checks the server's certificate; None if TLS was not requested.

        Raises:
            InvalidSettings: a certificate or key cannot be read.
        """
        if not self.wants_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate is not None:
                context.load_cert_chain(self.tls_certificate, self.tls_key)
        except (OSError, ValueError) as error:
            raise InvalidSettings(
                f"cannot read the TLS files ({error}): tls_ca, tls_certificate and tls_key must be PEM files that match"
            ) from error
        return context

    @classmethod
    def from_url(cls, url: str, /, **others: Any) -> ConnectionSettings:
        """One address, or several separated by commas; `others` are fields of this class."""
        return cls(urls=tuple(part.strip() for part in url.split(",") if part.strip()), **others)

    @classmethod
    def from_context(cls, name: str | None = None, /, **others: Any) -> ConnectionSettings:
        """A context of the `nats` CLI (`nats context ls`); the selected one if `name` is None.

        Raises:
            InvalidSettings: there is no such context, or it cannot be used; the text lists the known ones.
        """
        return cls(**{**context_fields(name), **others})

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, /, **others: Any) -> ConnectionSettings:
        """What the `nats` CLI would use: NATS_URL, NATS_CONTEXT, NATS_USER and so on, else its selected context, else
        the default address; plus GANGLINE_INBOX_PREFIX. `others` override all of these.

        The selected context is ignored if NATS_URL names a server, so that its secrets go nowhere else.
        """
        return cls(**{**environment_fields(environ), **others})


def _checked_url(url: str) -> str:
    if not isinstance(url, str) or not url.strip():
        raise InvalidSettings(f"an address is empty: give one like {DEFAULT_URL!r}")
    full = url.strip() if "://" in url else f"nats://{url.strip()}"
    try:
        parts = urlsplit(full)
        port = parts.port
    except ValueError as error:
        raise InvalidSettings(
            f"address {_without_userinfo(url)!r} is wrong ({error}): write nats://host:port"
        ) from error
    if parts.scheme not in _SCHEMES:
        raise InvalidSettings(
            f"address {_without_userinfo(url)!r} has the scheme {parts.scheme!r}: use nats:// or tls://"
        )
    if not parts.hostname:
        raise InvalidSettings(f"address {_without_userinfo(url)!r} has no host: write nats://host:port")
    return full if port is not None else f"{full.rstrip('/')}:4222"


def _without_userinfo(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _checked_file(name: str, value: Any) -> Path | None:
    if value is None or value == "":
        return None
    path = Path(value).expanduser()
    if not path.is_file():
        raise InvalidSettings(f"{name} {str(path)!r} is not a file: correct the path, or leave it out")
    return path


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidSettings(f"{name} is {value!r}: give seconds between {plain(least)} and {plain(most)}")


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
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _home() / ".config") / "nats"


def _home() -> Path:
    """The user's home as the `nats` CLI finds it: that of the user database, whatever $HOME says."""
    try:
        import pwd

        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):  # Windows, or a user whom nobody has entered there
        return Path.home()


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
        values: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8"))
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
