"""The only module that imports `nats`: its client, with the hot paths and the dangerous ones replaced.

What stays from nats-py is the handshake: choosing a server, INFO and CONNECT, credentials, nkeys and TLS. Replaced are

* publishing: commands go straight into the client's pending list and out in one write per turn of the event loop,
  instead of one coroutine, one future and one queue hop per message;
* receiving: the read loop cuts messages with `wire.Parser` and hands each to its subscriber in the same call, instead
  of two coroutines, a queue and a task per subscription;
* flushing, reconnecting and closing: nats-py loses its read loop to a cancelled flush or to an error in a callback,
  sends what was published while disconnected after the reconnect, stops reconnecting on errors it does not know, and
  waits for ever for a frozen server to take its last bytes.

This is private API, hence the check of the version below and the upper bound in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from nats import errors as nats_errors
from nats.aio.client import Client, __version__

from ..schemas.errors import ClosedError, Disconnected
from .port import Message
from .wire import Parser, ProtocolViolation, decode_headers

log = logging.getLogger("gangline.bus")

HIGH_WATER_BYTES: Final = 2 * 1024 * 1024
_READ_BYTES: Final = 131_072
_CLOSE_TIMEOUT_S: Final = 2.0
_TESTED: Final = "2.16."

NATS_PY_VERSION: Final[str] = __version__


def check_client_version(version: str) -> None:
    """Refuse a nats-py whose private parts were not tested.

    Raises:
        ImportError: with the command that installs the right one.
    """
    if not version.startswith(_TESTED):
        raise ImportError(
            f"nats-py {version} is installed, but gangline was tested with {_TESTED}x only, since it uses parts that "
            f"may change: run `pip install 'nats-py>=2.16,<2.17'`"
        )


check_client_version(NATS_PY_VERSION)


class Observer(Protocol):
    """Who is told what happens to the connection; nothing of it may raise."""

    def on_disconnected(self, reason: str) -> None: ...

    def on_reconnected(self) -> None: ...

    def on_closed(self) -> None: ...

    def on_server_error(self, text: str) -> None:
        """An `-ERR` line, as the server wrote it."""
        ...

    def on_attempt_failed(self, error: Exception) -> None:
        """One try to connect failed; the next follows."""
        ...


class DirectClient(Client):
    """See the module's text. One instance is one connection, and is opened once."""

    def __init__(self, observer: Observer, *, jitter: Callable[[], float], wants_tls: bool) -> None:
        super().__init__()
        self._observer = observer
        self._jitter = jitter
        self._wants_tls = wants_tls
        self._loop = asyncio.get_running_loop()
        self._flush_scheduled = False
        self._deliveries: dict[bytes, Callable[[Message], None]] = {}
        self._interests: dict[bytes, bytes] = {}
        """The SUB command of each subscription by its sid; sent again after a reconnect."""
        self._last_sid = 0
        self._background: set[asyncio.Task[None]] = set()

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Publishing is possible. (`is_connected` costs three calls, and is also true while draining.)"""
        return bool(self._status == Client.CONNECTED)

    @property
    def server_info(self) -> dict[str, Any]:
        """The INFO that the server last sent."""
        return dict(self._server_info)

    @property
    def buffered_bytes(self) -> int:
        """What was published and is not yet in the kernel."""
        return int(self._pending_data_size) + self._written_bytes()

    def _written_bytes(self) -> int:
        writer = getattr(self._transport, "_io_writer", None)
        return 0 if writer is None else int(writer.transport.get_write_buffer_size())

    # -- opening --------------------------------------------------------------------------------------------------

    async def open(self, **options: Any) -> None:
        """Connect; tries for ever. The caller bounds it and calls `shut` if it gives up.

        Raises:
            nats.errors.Error: the server refuses our identity.
        """
        options["allow_reconnect"] = False  # so that the first failure comes back here, not into nats-py's own loop
        try:
            await super().connect(error_cb=self._report, **options)
        except (OSError, nats_errors.Error, TimeoutError) as error:
            self._raise_if_final(error)
            await self._establish()
        self._prepare_transport()

    @staticmethod
    def _raise_if_final(error: Exception) -> None:
        """No other try can succeed: wrong identity or wrong certificate."""
        if isinstance(error, ssl.SSLError) or "authorization violation" in str(error).lower():
            raise error

    async def _establish(self) -> None:
        """Try the servers in turn until one takes us."""
        while not self.is_closed:
            self._abort_transport()
            self._transport = None  # the old one may still be busy closing
            await self._select_next_server()
            try:
                await self._process_connect_init()
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except Exception as error:
                # Whatever it was: an address that is not NATS, a server shutting down, a protocol error.
                if self.is_closed:
                    return
                self._status = Client.RECONNECTING
                self._observer.on_attempt_failed(error)
                if self._current_server is not None:
                    self._current_server.last_attempt = time.monotonic()
                    self._current_server.reconnects += 1
                continue
            if self._current_server is not None:
                self._current_server.reconnects = 0
            return

    def _prepare_transport(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def _connect_command(self) -> bytes:
        if self._wants_tls and not self._is_encrypted():
            raise nats_errors.Error("nats: TLS was asked for, and the server does not offer it")
        return bytes(super()._connect_command())

    def _is_encrypted(self) -> bool:
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.transport.get_extra_info("ssl_object") is not None

    async def _report(self, error: Exception) -> None:
        """nats-py's `error_cb`: must not raise, for that would end its loops."""
        try:
            self._observer.on_attempt_failed(error)
        except Exception:
            log.exception("an observer of the connection failed", extra={"action": "bus_observer_failed"})

    # -- sending --------------------------------------------------------------------------------------------------

    def send(self, command: bytes) -> None:
        """Queue a command; all that is queued in one turn of the loop leaves in one write."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._write_pending)

    def _write_pending(self) -> None:
        self._flush_scheduled = False
        if not self._pending or self._status != Client.CONNECTED or self._transport is None:
            return
        pending, self._pending = self._pending, []
        self._pending_data_size = 0
        try:
            self._transport.write(pending[0] if len(pending) == 1 else b"".join(pending))
        except Exception as error:
            # The transport is closing; the read loop sees that too and reconnects.
            log.debug("write failed: %s", error, extra={"action": "bus_write_failed"})

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """nats-py calls this after queueing a command of its own."""
        self._write_pending()
        done = self._loop.create_future()
        done.set_result(None)
        return done

    async def writable(self) -> None:
        """Wait until less than HIGH_WATER_BYTES are buffered."""
        while self.buffered_bytes >= HIGH_WATER_BYTES:
            self._write_pending()
            if not self.ready or self._transport is None:
                raise Disconnected("the connection to the nats-server was lost: try again when it is back")
            try:
                await self._transport.drain()
            except OSError as error:
                raise Disconnected(f"the connection to the nats-server was lost ({error})") from error

    async def ping(self, timeout_s: float) -> None:
        """Round trip after all that was sent so far. May be cancelled at any time.

        Raises:
            Disconnected: no answer in time, or the connection was lost.
        """
        if not self.ready or self._transport is None:
            raise Disconnected("no connection to a nats-server right now: try again when it is back")
        self._write_pending()  # nats-py's own flush sends its PING before what is pending
        pong: asyncio.Future[Any] = self._loop.create_future()
        self._pongs.append(pong)
        self._transport.write(b"PING\r\n")
        try:
            async with asyncio.timeout(timeout_s):
                await pong
        except TimeoutError:
            raise Disconnected(f"the nats-server did not answer within {timeout_s:g} s: it is frozen or far") from None

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """nats-py's ping task calls this; no error of the transport may end that task."""
        self._pongs.append(future or self._loop.create_future())
        self._write_pending()
        if self._transport is not None:
            self._transport.write(b"PING\r\n")

    async def flush(self, timeout: float = 5) -> None:  # type: ignore[override]
        """nats-py calls this nowhere on our paths; kept right all the same."""
        await self.ping(timeout)

    # -- subscriptions --------------------------------------------------------------------------------------------

    def add_subscription(self, subject: str, queue: str, deliver: Callable[[Message], None]) -> bytes:
        """Register interest, also while disconnected; returns the sid."""
        if self.is_closed:
            raise ClosedError("this connection was closed: open another one")
        self._last_sid += 1
        sid = str(self._last_sid).encode()
        command = f"SUB {subject} {queue} {self._last_sid}\r\n".encode()
        self._deliveries[sid] = deliver
        self._interests[sid] = command
        if self.ready:
            self.send(command)
        return sid

    def remove_subscription(self, sid: bytes) -> None:
        self._deliveries.pop(sid, None)
        if self._interests.pop(sid, None) is not None and self.ready:
            self.send(b"UNSUB %b\r\n" % sid)

    # -- receiving ------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        # A parser for each connection: nothing of a broken message can leak into the next.
        parser = Parser(self._deliver, self._control)
        reason: Exception = nats_errors.UnexpectedEOF()
        transport = self._transport
        try:
            while self._status == Client.CONNECTED and transport is self._transport and transport is not None:
                chunk = await transport.read(_READ_BYTES)
                if not chunk:
                    break
                parser.feed(chunk)
        except (OSError, ProtocolViolation) as error:
            reason = error
        except asyncio.CancelledError:
            return
        except Exception as error:
            # A defect of ours must cost a reconnect, not leave a connection that looks alive and hears nothing.
            log.exception("the read loop failed; reconnecting", extra={"action": "bus_read_failed"})
            reason = error
        if transport is self._transport:
            self._lose(reason)

    def _deliver(self, sid: bytes, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        deliver = self._deliveries.get(sid)
        if deliver is None:
            return
        message = Message(
            subject.decode("utf-8", "replace"),
            data,
            reply.decode("utf-8", "replace"),
            decode_headers(headers) if headers else None,
        )
        try:
            deliver(message)
        except Exception:
            log.exception(
                "the handler of a message on %s failed; the message is lost",
                message.subject,
                extra={"action": "bus_handler_failed", "subject": message.subject},
            )

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self.send(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            self._pong()
        elif line.startswith(b"INFO"):
            self._spawn(self._update_info(line[4:]))
        elif line.startswith(b"-ERR"):
            self._observer.on_server_error(line[4:].decode("utf-8", "replace").strip().strip("'"))
            if b"stale connection" in line.lower():
                self._lose(nats_errors.StaleConnectionError())
        elif line and not line.startswith(b"+OK"):
            raise ProtocolViolation(f"unknown line {line[:80]!r}")

    def _pong(self) -> None:
        self._pings_outstanding = 0
        if self._pongs:
            waiting = self._pongs.pop(0)
            if not waiting.done():  # whoever cancelled a flush is still in the list, to keep the order
                waiting.set_result(True)

    async def _update_info(self, text: bytes) -> None:
        try:
            info = json.loads(text)
            self._server_info.update(info)
            self._max_payload = int(info.get("max_payload", self._max_payload))
            await self._process_info(info)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("the server sent an INFO that cannot be read: %s", error, extra={"action": "bus_info_invalid"})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- losing and regaining -------------------------------------------------------------------------------------

    async def _process_op_err(self, e: Exception) -> None:
        """nats-py's ping task calls this when the server stopped answering."""
        self._lose(e)

    def _lose(self, reason: Exception) -> None:
        if self._status != Client.CONNECTED:
            return
        self._status = Client.RECONNECTING
        self._err = reason
        # What was published and not written must not arrive after the reconnect: whoever published it has been told
        # by then that it is lost.
        self._pending = []
        self._pending_data_size = 0
        self._stop_io()
        pongs, self._pongs = self._pongs, []
        for pong in pongs:
            if not pong.done():
                pong.set_exception(Disconnected(f"the connection to the nats-server was lost ({_text(reason)})"))
                pong.exception()  # nobody may be waiting any more
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
            if self._transport is not None and self._interests:
                self._transport.write(b"".join(self._interests.values()))
            self.stats["reconnects"] += 1
            try:
                await self.ping(self.options["connect_timeout"])
            except Disconnected as error:
                if self.ready:  # it took us, but does not answer
                    self._status = Client.RECONNECTING
                    self._stop_io()
                    self._observer.on_attempt_failed(error)
                    continue
                return  # lost again meanwhile: another task is at it
            self._observer.on_reconnected()
            return

    def _stop_io(self) -> None:
        current = asyncio.current_task()
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None and task is not current:
                task.cancel()
        self._abort_transport()

    def _abort_transport(self) -> None:
        """Drop the socket at once: a polite close waits until a frozen server takes the rest."""
        for writer in (getattr(self._transport, "_io_writer", None), getattr(self._transport, "_bare_io_writer", None)):
            if writer is not None:
                writer.transport.abort()

    async def shut(self) -> None:
        """Send what is queued, at most for two seconds, and close for good. Idempotent."""
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
        # One turn, so that the cancelled tasks end and the socket is let go before the caller closes the loop.
        await asyncio.sleep(0)

    def _finish(self) -> None:
        if self.is_closed:
            return
        self._status = Client.CLOSED
        if self._reconnection_task is not None and self._reconnection_task is not asyncio.current_task():
            self._reconnection_task.cancel()
        self._stop_io()
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(ClosedError("this connection was closed while waiting"))
                pong.exception()
        self._pongs = []
        self._deliveries.clear()
        self._interests.clear()
        self._observer.on_closed()


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
