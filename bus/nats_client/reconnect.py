"""The life cycle of a connection: open, lose, reconnect, close. The part of `client` that is not hot.

nats-py's own reconnect is not used: it ends on unknown errors, and waits forever for a frozen server to take its last
bytes. Its choice of a server and its handshake are used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from nats import errors as nats_errors
from nats.aio.client import Client

from ...schemas.errors.base import ClosedError, Disconnected
from ..port.bus import HIGH_WATER_BYTES

log = logging.getLogger("gangline.bus")

_CLOSE_TIMEOUT_S: Final = 2.0


class ConnectionObserver(Protocol):
    """Is told what happens to the connection; its methods must not raise."""

    def on_disconnected(self, reason: str) -> None: ...

    def on_reconnected(self) -> None: ...

    def on_closed(self) -> None: ...

    def on_server_error(self, text: str) -> None:
        """An `-ERR` line as the server wrote it."""
        ...

    def on_attempt_failed(self, error: Exception) -> None:
        """An attempt to connect failed; the next follows."""
        ...


class ReconnectingClient(Client):
    """A client that never gives up once it has been connected. One instance is one connection, and is opened once."""

    def __init__(
        self,
        observer: ConnectionObserver,
        *,
        jitter: Callable[[], float],
        wants_tls: bool,
        tls_context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        super().__init__()
        self._observer = observer
        self._jitter = jitter
        """Seconds to wait before trying the same server again."""
        self._wants_tls = wants_tls
        self._tls_context = tls_context
        self._loop = asyncio.get_running_loop()
        self._over = False
        self.pings_sent = 0

    @property
    def pings_answered(self) -> int:
        """Of `pings_sent`. The server answers in order, so what it has refused of all that was sent before is known."""
        return self.pings_sent - len(self._pongs)

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good. nats-py's status alone cannot tell: a handshake in progress overwrites it."""
        return self._over or bool(self._status == Client.CLOSED)

    @property
    def ready(self) -> bool:
        """Whether publishing is possible. (`is_connected` costs three calls, and is also true while draining.)"""
        return bool(self._status == Client.CONNECTED)

    @property
    def server_info(self) -> dict[str, Any]:
        """The server's latest INFO."""
        return dict(self._server_info)

    def _write_pending(self) -> None:
        """Hand queued commands to the transport."""
        raise NotImplementedError

    def _subscribe_again(self) -> bytes:
        """The SUB commands of all subscriptions."""
        raise NotImplementedError

    def _forget_subscriptions(self) -> None:
        raise NotImplementedError

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """nats-py asks for it in each handshake: files that were replaced meanwhile are read again."""
        context = self._tls_context()
        return super().ssl_context if context is None else context

    # -- opening --------------------------------------------------------------------------------------------------

    async def open(self, **options: Any) -> None:
        """Connect; never gives up by itself. The caller limits the time, and calls `shut` if it gives up.

        Raises:
            nats.errors.Error: the server refused our identity.
        """
        options["allow_reconnect"] = False  # so that the first failure comes here, not to nats-py's own loop
        try:
            await super().connect(error_cb=self._report, **options)
        except (OSError, nats_errors.Error, TimeoutError) as error:
            self._raise_if_final(error)
            await self._establish()
        self._prepare_transport()

    @staticmethod
    def _raise_if_final(error: Exception) -> None:
        """Raise errors that no other attempt can fix: wrong identity or certificate."""
        if isinstance(error, ssl.SSLError) or "authorization violation" in str(error).lower():
            raise error

    async def _establish(self) -> None:
        """Try the servers in turn until one accepts us."""
        while not self.is_closed:
            self._abort_transport()
            self._transport = None  # the old one may still be busy closing
            await self._select_next_server()
            if self.is_closed:
                self._stay_closed()
                return
            try:
                if self._nkeys_seed is not None:
                    self._setup_nkeys_connect()  # reads the file again; those of credentials are read by themselves
                await self._process_connect_init()
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except Exception as error:
                # Whatever the cause: an address that is not NATS, a server shutting down, a protocol error.
                if self.is_closed:
                    self._stay_closed()
                    return
                self._status = Client.RECONNECTING
                self._observer.on_attempt_failed(error)
                if self._current_server is not None:
                    self._current_server.last_attempt = time.monotonic()
                    self._current_server.reconnects += 1
                continue
            if self.is_closed:
                self._stay_closed()
                return
            if self._current_server is not None:
                self._current_server.reconnects = 0
            return

    def _stay_closed(self) -> None:
        """End a connection that was made although we were closed meanwhile: asyncio.wait_for, with which nats-py
        connects, swallows a cancellation that comes together with the result."""
        self._status = Client.CLOSED
        self._stop_io()

    async def _process_connect_init(self) -> None:
        """nats-py's handshake takes a server that hangs up instead of sending the last PONG for a success, and then
        nobody would ever try again."""
        await super()._process_connect_init()
        if self._status == Client.CONNECTING:
            self._stop_io()
            raise nats_errors.Error("nats: the server broke off the handshake")

    def _prepare_transport(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def _connect_command(self) -> bytes:
        if self._is_encrypted():
            # nats-py upgraded to TLS without telling the protocol, which otherwise complains at the end.
            transport: Any = self._transport
            protocol = transport._io_writer.transport.get_protocol()
            if protocol is not None:  # uvloop has none any more if the server has closed the connection
                protocol._over_ssl = True
        elif self._wants_tls:
            raise nats_errors.Error("nats: TLS was asked for, and the server does not offer it")
        return bytes(super()._connect_command())

    def _is_encrypted(self) -> bool:
        return self._of_socket("ssl_object") is not None

    @property
    def plain_text_to(self) -> str | None:
        """The address of the server, if it is on another machine and TLS is off."""
        peer = self._of_socket("peername")
        if self._is_encrypted() or not isinstance(peer, tuple) or ipaddress.ip_address(peer[0]).is_loopback:
            return None
        return str(peer[0])

    def _of_socket(self, what: str) -> object:
        writer = getattr(self._transport, "_io_writer", None)
        return None if writer is None else writer.transport.get_extra_info(what)

    async def _report(self, error: Exception) -> None:
        """nats-py's `error_cb`. It must not raise: that would end nats-py's loops."""
        if self.is_closed:
            # asyncio.wait_for swallows a cancellation that comes together with an error, and nats-py would continue to
            # try.
            raise asyncio.CancelledError
        try:
            self._observer.on_attempt_failed(error)
        except Exception:
            log.exception("an observer of the connection failed", extra={"action": "bus.observer_failed"})

    # -- round trips ----------------------------------------------------------------------------------------------

    async def ping(self, timeout_s: float) -> None:
        """Make a round trip after everything sent so far. Can be cancelled at any time.

        Raises:
            Disconnected: no answer in time, or the connection was lost.
        """
        if not self.ready or self._transport is None:
            raise Disconnected("no connection to a nats-server right now: try again when it is back")
        self._write_pending()  # nats-py's own flush sends its PING before pending commands
        pong: asyncio.Future[Any] = self._loop.create_future()
        self._pongs.append(pong)
        self.pings_sent += 1
        self._transport.write(b"PING\r\n")
        try:
            async with asyncio.timeout(timeout_s):
                await pong
        except TimeoutError:
            raise Disconnected(
                f"the nats-server did not answer within {timeout_s:g} s: it is frozen or far away"
            ) from None

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """nats-py's ping task calls this; no transport error may end that task."""
        self._pongs.append(future or self._loop.create_future())
        self.pings_sent += 1
        self._write_pending()
        if self._transport is not None:
            self._transport.write(b"PING\r\n")

    async def flush(self, timeout: float = 5) -> None:
        """nats-py never calls this on our paths; correct all the same."""
        await self.ping(timeout)

    def _pong(self) -> None:
        self._pings_outstanding = 0
        if self._pongs:
            waiting = self._pongs.pop(0)
            if not waiting.done():  # a cancelled flush stays in the list to keep the order
                waiting.set_result(True)

    # -- losing and regaining -------------------------------------------------------------------------------------

    async def _process_op_err(self, e: Exception) -> None:
        """nats-py's ping task calls this when the server has stopped answering."""
        self._lose(e)

    def _lose(self, reason: Exception) -> None:
        if self._status != Client.CONNECTED:
            return
        self._status = Client.RECONNECTING
        self._err = reason
        # Published but unwritten messages must not be sent after the reconnect: by then their publishers have been told
        # that they are lost.
        self._pending = []
        self._pending_data_size = 0
        self._stop_io()
        pongs, self._pongs = self._pongs, []
        for pong in pongs:
            if not pong.done():
                pong.set_exception(Disconnected(f"the connection to the nats-server was lost ({_text(reason)})"))
                pong.exception()  # perhaps nobody is awaiting it
        self._observer.on_disconnected(_text(reason))
        if self._reconnection_task is not None:
            self._reconnection_task.cancel()
        self._reconnection_task = self._loop.create_task(self._attempt_reconnect())

    async def _attempt_reconnect(self) -> None:
        while not self.is_closed:
            self.options["reconnect_time_wait"] = self._jitter()
            await self._establish()
            if self.is_closed:
                return
            self._prepare_transport()
            if self._transport is not None:
                self._transport.write(self._subscribe_again())
            self.stats["reconnects"] += 1
            try:
                await self.ping(self.options["connect_timeout"])
            except Disconnected as error:
                if self.ready:  # it accepted us, but does not answer
                    self._status = Client.RECONNECTING
                    self._stop_io()
                    self._observer.on_attempt_failed(error)
                    continue
                return  # lost again meanwhile: another task handles it
            self._observer.on_reconnected()
            return

    def _stop_io(self) -> None:
        current = asyncio.current_task()
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None and task is not current:
                task.cancel()
        self._abort_transport()

    def _abort_transport(self) -> None:
        """Drop the socket at once: a graceful close waits until a frozen server takes the rest."""
        for writer in (getattr(self._transport, "_io_writer", None), getattr(self._transport, "_bare_io_writer", None)):
            if writer is not None:
                writer.transport.abort()

    async def shut(self) -> None:
        """Send queued commands, for at most two seconds, and close for good. Idempotent."""
        if self.is_closed:
            return
        if self.ready:
            try:
                await self.ping(_CLOSE_TIMEOUT_S)
            except Disconnected:
                pass
            except asyncio.CancelledError:
                self._finish()
                raise
        self._finish()
        # Let the cancelled tasks end and release the socket before the caller closes the loop.
        tasks = (self._reading_task, self._ping_interval_task, self._flusher_task, self._reconnection_task)
        ending = {task for task in tasks if task is not None and task is not asyncio.current_task()}
        if ending:
            await asyncio.wait(ending, timeout=_CLOSE_TIMEOUT_S)
        await asyncio.sleep(0)

    def abandon(self) -> None:
        """In a forked child: send nothing more, and leave the socket and the loop to the parent."""
        self._over = True
        self._status = Client.CLOSED
        self._pending = []

    def _finish(self) -> None:
        if self.is_closed:
            return
        self._over = True
        self._status = Client.CLOSED
        if self._reconnection_task is not None and self._reconnection_task is not asyncio.current_task():
            self._reconnection_task.cancel()
        self._stop_io()
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(ClosedError("this connection was closed while waiting"))
                pong.exception()
        self._pongs = []
        self._forget_subscriptions()
        self._observer.on_closed()


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
