"""Who may ask the console what: checks on every request, before anything else sees it.

1. The Host header is one of the allowed ones. A name that an attacker points at this address (DNS rebinding) is not.
2. GET and HEAD change nothing and are the only methods without further conditions. POST needs a proof that a page of
   the console itself sent it, and a body of JSON. Every other method is refused.
3. Nobody who has not signed in gets anything but a page that says how.
4. Answers may load nothing from elsewhere, run no inline scripts, and are not kept by caches.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from .settings import Auth, ConsoleSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_SESSIONS: Final = 1000
SESSION_S: Final = 12 * 3600
"""How long after it has signed in a browser must sign in again."""
SIGN_OUT: Final = "/api/sign-out"
MOST_BODY_BYTES: Final = 1024 * 1024

HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_SIGN_IN: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Gangline</title>
<link rel="stylesheet" href="{root}/static/app.css"><body class="door"><main><h1>Sign in</h1>
<p>Open the link that <code>gangline console</code> printed in its terminal. Each link signs in one browser once; the
terminal then prints the next one.</p></main></body></html>"""


class Sessions:
    """Who has signed in, for SESSION_S or until they sign out. Nothing is stored, so a restart signs everybody out.

    Args:
        on_link: told the token of each new sign-in link.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, on_link: Callable[[str], None] = lambda token: None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_link = on_link
        self._clock = clock
        self._link = ""
        self._ends: dict[str, float] = {}
        """When each session ends; the oldest first."""

    def new_link(self) -> str:
        """Make a token for one sign-in; the previous one becomes invalid."""
        self._link = secrets.token_urlsafe(32)
        self._on_link(self._link)
        return self._link

    def sign_in(self, token: str) -> str | None:
        """The new session, if the token is that of the current link. The link is then used up."""
        if not self._link or not hmac.compare_digest(self._link.encode(), token.encode()):
            return None
        session = secrets.token_urlsafe(32)
        self._ends[session] = self._clock() + SESSION_S
        while len(self._ends) > MOST_SESSIONS:
            del self._ends[next(iter(self._ends))]
        self.new_link()
        return session

    def __contains__(self, session: str) -> bool:
        return self._clock() < self._ends.get(session, float("-inf"))

    def sign_out(self, session: str) -> None:
        """End a session."""
        self._ends.pop(session, None)


@dataclass(frozen=True, slots=True)
class RequestRefused(Exception):
    """The request is not served: it is answered with this status and this text."""

    status: int
    text: str


class Guard:
    """ASGI middleware with the checks of this module."""

    def __init__(
        self, app: ASGIApp, settings: ConsoleSettings, sessions: Sessions, port: Callable[[], int | None]
    ) -> None:
        """
        Args:
            port: on which the server listens; None: not known, and then only `settings.hosts` are allowed.
        """
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message.get("headers", ())}
                more = [item for item in HEADERS if item[0] not in given]
                if b"cache-control" not in given:
                    more.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        fields = _fields(scope)
        try:
            self._check(scope, fields)
            if (session := self._signs_in(scope)) is not None:
                await self._welcome(scope, guarded, session)
                return
            user, session = self._user(scope, fields)
            if session and _path(scope) == SIGN_OUT and scope["method"] == "POST":
                self._sessions.sign_out(session)
                await self._part(scope, guarded)
                return
            scope.setdefault("state", {}).update(
                user=user, session=session, signed_in=lambda: not session or session in self._sessions
            )
        except RequestRefused as refused:
            await _answer(guarded, refused.status, refused.text, html=refused.status == 401)
            return
        await self._app(scope, receive, guarded)

    def _check(self, scope: Scope, fields: Mapping[str, str]) -> None:
        """
        Raises:
            RequestRefused: the request must not be answered.
        """
        host = fields.get("host", "").lower()
        port = self._port()
        allowed = self._settings.allowed_hosts(port) if port is not None else {h.lower() for h in self._settings.hosts}
        if host not in allowed:
            raise RequestRefused(421, f"the console is not called {host!r}: give that name with --host if it is meant")
        site = fields.get("sec-fetch-site")
        method = scope["method"]
        if method in ("GET", "HEAD"):
            return
        if method != "POST":
            raise RequestRefused(405, "use GET, or POST for an action")
        if site is not None:
            if site != "same-origin":
                raise RequestRefused(403, "this request comes from another site")
        else:
            origin = urlsplit(fields.get("origin", ""))
            if origin.scheme not in ("http", "https") or origin.netloc.lower() != host:
                raise RequestRefused(403, "this request does not come from a page of the console")
        if fields.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestRefused(415, "send JSON, as application/json")
        length = fields.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BODY_BYTES:
            raise RequestRefused(413, f"send a body of known length, at most {MOST_BODY_BYTES} bytes")

    def _signs_in(self, scope: Scope) -> str | None:
        """The session that this request begins with its token; None: it has none.

        Raises:
            RequestRefused: the token is wrong, or was used before.
        """
        if self._settings.auth is Auth.PROXY or scope["method"] != "GET" or _path(scope) != "/":
            return None
        tokens = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
        if not tokens:
            return None
        session = self._sessions.sign_in(tokens[0])
        if session is None:
            raise RequestRefused(401, _SIGN_IN.format(root=self._settings.root_path))
        return session

    async def _welcome(self, scope: Scope, send: Send, session: str) -> None:
        fields = [(b"location", f"{self._settings.root_path}/".encode()), self._set_cookie(scope, session, SESSION_S)]
        await send({"type": "http.response.start", "status": 303, "headers": fields})
        await send({"type": "http.response.body", "body": b""})

    async def _part(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": [self._set_cookie(scope, "", 0)]})
        await send({"type": "http.response.body", "body": b""})

    def _set_cookie(self, scope: Scope, session: str, life_s: int) -> tuple[bytes, bytes]:
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        where = f"Path={self._settings.root_path or '/'}; Max-Age={life_s}; HttpOnly; SameSite=Strict{secure}"
        return b"set-cookie", f"{self._cookie(scope)}={session}; {where}".encode()

    def _cookie(self, scope: Scope) -> str:
        """Cookies are shared by all ports of a host, so the name has the port."""
        return f"gangline_console_{(scope.get('server') or ('', 0))[1]}"

    def _user(self, scope: Scope, fields: Mapping[str, str]) -> tuple[str, str]:
        """Who asks, and in which session; a proxy has sessions of its own.

        Raises:
            RequestRefused: nobody who has signed in.
        """
        if self._settings.auth is Auth.PROXY:
            peer = (scope.get("client") or ("", 0))[0]
            user = fields.get(self._settings.user_header, "")
            if not user or not self._trusts(peer):
                raise RequestRefused(403, "open the console through its proxy, which must name the user")
            return user[:200], ""
        if _path(scope).startswith("/static/") and scope["method"] in ("GET", "HEAD"):
            return "", ""  # the page that says how to sign in needs them; they are the same for everybody
        try:
            cookie = SimpleCookie(fields.get("cookie", "")).get(self._cookie(scope))
        except CookieError:
            cookie = None
        if cookie is None or cookie.value not in self._sessions:
            raise RequestRefused(401, _SIGN_IN.format(root=self._settings.root_path))
        return "console", cookie.value

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._settings.networks)


def _path(scope: Scope) -> str:
    """Without the root path."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _fields(scope: Scope) -> dict[str, str]:
    """Of a repeated field the first value: none that counts here may be repeated."""
    fields: dict[str, str] = {}
    for name, value in scope["headers"]:
        fields.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return fields


async def _answer(send: Send, status: int, text: str, *, html: bool = False) -> None:
    kind = b"text/html; charset=utf-8" if html else b"text/plain; charset=utf-8"
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": text.encode()})
