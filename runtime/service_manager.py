"""Tells systemd how a process is: ready, stopping, alive. Does nothing if systemd did not start it.

The protocol is one datagram of `NAME=VALUE` lines to the socket in NOTIFY_SOCKET; see sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """The socket of the process's unit, if it has `Type=notify`."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_s: float | None = None
        """Within this time it must be told that the process is alive; None: it does not watch."""
        micros, of = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if self._address and micros.isdecimal() and int(micros) > 0 and of in ("", str(os.getpid())):
            self.watchdog_s = int(micros) / 1_000_000

    def __bool__(self) -> bool:
        return bool(self._address)

    def __repr__(self) -> str:
        return f"ServiceManager({self._address!r}, watchdog_s={self.watchdog_s})"

    def ready(self) -> None:
        self._tell("READY=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """Call at least every `watchdog_s`."""
        self._tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._tell(f"STATUS={text}".replace("\n", " "))

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.setblocking(False)
                notify.sendto(message.encode(), self._address)
        except OSError:
            return  # its manager is away or slow: that must not end a service
