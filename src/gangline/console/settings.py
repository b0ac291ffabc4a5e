"""Settings of the console."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..schemas.errors.base import InvalidSettings

DEFAULT_PORT: Final = 4280
ACTIONS: Final = ("drain", "resize", "cancel", "release", "replay", "drop", "route", "scale", "schedule")
"""What can be done in the console, if it is allowed."""


class Auth(StrEnum):
    """How the console knows who is there."""

    TOKEN = "token"
    """By a link that is printed, which is good for one sign-in and sets a cookie."""
    PROXY = "proxy"
    """By a header of a trusted proxy, which has authenticated the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """
    Raises:
        InvalidSettings: a value is out of bounds, or the console would be open to others.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Without `auth`, only a loopback address."""
    port: int = DEFAULT_PORT
    """0: any free one."""
    auth: Auth | str | None = None
    """None: as `token`, and only on a loopback address."""
    hosts: Collection[str] = ()
    """Further names by which browsers reach it: values of the Host header, with the port unless it is the scheme's
    own."""
    root_path: str = ""
    """Path below which a proxy serves it, such as `/ops`."""
    trusted_proxies: Collection[str] = ()
    """Networks whose addresses are proxies, such as `10.0.0.0/8`. Required with `proxy`."""
    user_header: str = "x-forwarded-user"
    """Header in which a proxy names the user."""
    actions: Collection[str] = ()
    """Actions that are allowed, of ACTIONS."""
    show_payloads: bool = False
    """Whether arguments and results of tasks are shown."""
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "auth", None if self.auth is None else Auth(self.auth))
        except ValueError as error:
            raise InvalidSettings(f"auth is {self.auth!r}: use 'token' or 'proxy'") from error
        if not 0 <= self.port <= 65535:
            raise InvalidSettings(f"port is {self.port}: give 0 to 65535")
        if self.auth is None and not is_loopback(self.host):
            raise InvalidSettings(
                f"the console does not listen on {self.host} without --auth: anybody who reaches it could look; use "
                "--auth token, or --auth proxy behind a proxy that authenticates"
            )
        unknown = sorted(set(self.actions) - set(ACTIONS))
        if unknown:
            raise InvalidSettings(f"no action {unknown[0]!r}: there are {', '.join(ACTIONS)}")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise InvalidSettings(f"root path {self.root_path!r} must start with '/' and not end with it")
        if self.auth is Auth.PROXY and not self.trusted_proxies:
            raise InvalidSettings("--auth proxy needs --trusted-proxy: the network of the proxy, such as 10.0.0.0/8")
        try:
            networks = tuple(ipaddress.ip_network(text) for text in self.trusted_proxies)
        except ValueError as error:
            raise InvalidSettings(f"trusted proxy: {error}") from error
        object.__setattr__(self, "networks", networks)
        object.__setattr__(self, "user_header", self.user_header.lower())

    def allowed_hosts(self, port: int) -> frozenset[str]:
        """Values of the Host header that are answered, when it listens on that port."""
        own = {self.host, "127.0.0.1", "localhost", "[::1]"}
        if ":" in self.host:
            own = {*own, f"[{self.host}]"} - {self.host}
        if is_any(self.host):  # nobody calls it so
            own -= {self.host, f"[{self.host}]"}
        return frozenset({*(f"{name}:{port}" for name in own), *(name.lower() for name in self.hosts)})


def is_any(host: str) -> bool:
    """Whether that stands for all addresses of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
