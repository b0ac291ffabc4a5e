"""Opens the client, within a time limit and with errors that say what to do."""

from __future__ import annotations

import asyncio
import ssl
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ...runtime.clock import Environment
from ...schemas.errors.base import GanglineError, InvalidSettings, ServerUnreachable
from ...telemetry.logs import logger_for
from ...telemetry.metrics.connection import credentials_used
from ..settings.connection import ConnectionSettings
from .client import BufferedNatsClient
from .reconnect import ConnectionObserver

_log = logger_for("bus")
_ATTEMPT_TIMEOUT_S: Final = 2.0
_MAX_OUTSTANDING_PINGS: Final = 2
_CANCEL_TRIES: Final = 20


class ConnectionWatcher:
    """Passes events on and keeps the last error while opening. `refused` completes when as many attempts in a row as
    there are addresses were refused."""

    def __init__(self, observer: ConnectionObserver, addresses: int) -> None:
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._addresses = addresses
        self._refusals = 0
        self._observer = observer
        self.on_disconnected = observer.on_disconnected
        self.on_reconnected = observer.on_reconnected
        self.on_closed = observer.on_closed
        self.on_server_error = observer.on_server_error
        self.last_error: Exception | None = None

    def on_attempt_failed(self, error: Exception) -> None:
        self.last_error = error
        self._refusals = self._refusals + 1 if isinstance(error, ConnectionRefusedError) else 0
        if self._refusals >= self._addresses and not self.refused.done():
            self.refused.set_result(None)
        self._observer.on_attempt_failed(error)


async def open_client(
    settings: ConnectionSettings, *, name: str, observer: ConnectionObserver, ambient: Environment
) -> BufferedNatsClient:
    """Connect within `settings.connect_timeout_s`; errors as nats_bus.connect.

    nats-py's own `connect` may never return with a dead server, hence a task that can be abandoned.
    """
    watcher = ConnectionWatcher(observer, len(settings.urls))

    def jitter() -> float:
        return settings.reconnect_wait_s * (0.8 + 0.4 * ambient.random.random())

    client = BufferedNatsClient(watcher, jitter=jitter, wants_tls=settings.wants_tls, tls_context=settings.tls_context)
    opening = asyncio.ensure_future(client.open(**_options(settings, name, jitter())))
    try:
        ends = {opening} if settings.wait_for_server else {opening, watcher.refused}
        await asyncio.wait(ends, timeout=settings.connect_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if opening.done() and opening.exception() is None:
            _warn_of_plain_text(settings, client.plain_text_to, name)
            return client
        error = opening.exception() if opening.done() else watcher.last_error
    except BaseException:
        await _give_up(client, opening)
        raise
    await _give_up(client, opening)
    raise explain(settings, error) from error


def _warn_of_plain_text(settings: ConnectionSettings, address: str | None, name: str) -> None:
    """Nkeys and credentials sign what the server asks them to; a password or a token is sent as it is."""
    secret = (
        settings.password or settings.token or any(urlsplit(url).netloc.rpartition("@")[0] for url in settings.urls)
    )
    if secret and address is not None:
        _log.warning(
            "the password or token was sent to %s without TLS, and so will all arguments and results be: use tls:// "
            "addresses or tls_ca",
            address,
            extra={"action": "bus.plain_text", "bus": name},
        )


async def _give_up(client: BufferedNatsClient, opening: asyncio.Future[None]) -> None:
    # nats-py swallows cancellation in places: repeat it.
    for _ in range(_CANCEL_TRIES):
        if opening.done():
            break
        opening.cancel()
        await asyncio.wait({opening}, timeout=0.05)
    await client.shut()


def _identity_in(urls: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The addresses without their userinfo, and the userinfo as options.

    nats-py does not percent-decode it, and does not use it for servers discovered later. Addresses with different
    identities are not changed.
    """
    found = {urlsplit(url).netloc.rpartition("@")[0] for url in urls}
    userinfo = found.pop() if len(found) == 1 else ""
    if not userinfo:
        return urls, {}
    bare = tuple(url.replace(f"{userinfo}@", "", 1) for url in urls)
    user, colon, password = userinfo.partition(":")
    return bare, {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}


def _options(settings: ConnectionSettings, name: str, wait_s: float) -> dict[str, Any]:
    urls, identity = _identity_in(settings.urls)
    options: dict[str, Any] = {
        "servers": list(urls),
        **identity,
        "name": name or None,
        "connect_timeout": min(_ATTEMPT_TIMEOUT_S, settings.connect_timeout_s),
        "reconnect_time_wait": wait_s,
        "max_reconnect_attempts": -1,
        "ping_interval": settings.ping_interval_s,
        "max_outstanding_pings": _MAX_OUTSTANDING_PINGS,
        "inbox_prefix": settings.inbox_prefix,
        "tls": settings.tls_context(),
        "tls_handshake_first": settings.tls_first,
    }
    for kind, path in settings.files_that_end:
        credentials_used(kind, path)
    if settings.credentials_file is not None:
        options["user_credentials"] = str(settings.credentials_file)
    if settings.nkey_file is not None:
        options["nkeys_seed"] = str(settings.nkey_file)
    if settings.user or settings.token:
        options.update(user=settings.user or None, password=settings.password or None, token=settings.token or None)
    return options


class ConnectFailure(StrEnum):
    """Why a server was not connected to."""

    CREDENTIALS = "credentials"
    TLS = "tls"
    FILE = "file"
    """A file that belongs to the connection cannot be used."""
    LIMIT = "limit"
    """The server has no room for another connection."""
    UNREACHABLE = "unreachable"


def cause_of(error: BaseException | None) -> ConnectFailure:
    text = str(error).lower()
    if "authorization violation" in text or "authentication expired" in text:
        return ConnectFailure.CREDENTIALS
    if isinstance(error, ssl.SSLError) or "tls was asked for" in text:
        return ConnectFailure.TLS
    if "maximum connections exceeded" in text or "maximum account active connections" in text:
        return ConnectFailure.LIMIT
    if isinstance(error, InvalidSettings):
        return ConnectFailure.FILE
    if error is None or isinstance(error, OSError | TimeoutError) or type(error).__module__ == "nats.errors":
        return ConnectFailure.UNREACHABLE
    return ConnectFailure.FILE


def explain(settings: ConnectionSettings, error: BaseException | None) -> GanglineError:
    """What to do about an attempt that failed."""
    if isinstance(error, InvalidSettings):
        return error
    urls = ", ".join(settings.safe_urls)
    text = str(error) or type(error).__name__ if error is not None else "no answer"
    details = {"urls": list(settings.safe_urls), "error": text}
    cause = cause_of(error)
    if cause is ConnectFailure.CREDENTIALS:
        refusal = text.removeprefix("nats: ").strip("'").lower()
        return ServerUnreachable(
            f"{urls} rejected the credentials ({refusal}): check the user and password, token, "
            f"credentials file or nkey",
            details=details,
        )
    if cause is ConnectFailure.TLS:
        return ServerUnreachable(
            f"no TLS with {urls} ({text}): check tls_ca (--tlsca), the certificate, and whether the server speaks TLS",
            details=details,
        )
    if cause is ConnectFailure.LIMIT:
        return ServerUnreachable(
            f"{urls} takes no more connections ({text}): raise its max_connections, or that of the account, or end "
            f"processes that are not needed",
            details=details,
        )
    if cause is ConnectFailure.FILE:
        return InvalidSettings(
            f"the credentials or nkey file cannot be used ({text}): it must be a file written by `nsc`",
            details=details,
        )
    within = f" within {settings.connect_timeout_s:g} s" if settings.wait_for_server else ""
    return ServerUnreachable(
        f"cannot connect to {urls}{within} ({text}): start a nats-server there, or correct the address",
        details=details,
    )
