"""nats-py's client with the hot and the dangerous code paths replaced. Only this module and `reconnect` import `nats`.

What remains of nats-py is the handshake: choosing a server, INFO and CONNECT, credentials, nkeys and TLS. Replaced are

* publishing: commands go directly into the client's pending list and out in one write per turn of the event loop,
  instead of one coroutine, one future and one queue hop per message;
* receiving: `ProtocolParser` splits received bytes and hands messages to the subscribers in the same call, instead of a
  stream's buffer, two coroutines, a queue and a task per subscription;
* flushing, reconnecting and closing: nats-py loses its read loop to a cancelled flush or an error in a callback, sends
  messages published while disconnected after the reconnect, stops reconnecting on unknown errors, and waits forever for
  a frozen server to take its last bytes.

This uses private API, hence the version check below and the upper bound in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from nats import errors as nats_errors
from nats.aio.client import Client, __version__

from ...runtime.tasks import TaskSet
from ...schemas.errors.base import ClosedError, Disconnected
from ..port.bus import Message
from .protocol import ProtocolParser, ProtocolViolation, decode_headers
from .reconnect import ConnectionObserver, ReconnectingClient

_DRAIN_TIMEOUT_S: Final = 5.0

log = logging.getLogger("gangline.bus")

_READ_BYTES: Final = 131_072
_TESTED: Final = "2.16."

NATS_PY_VERSION: Final[str] = __version__


def check_client_version(version: str) -> None:
    """Refuse a nats-py version whose private API was not tested.

    Raises:
        ImportError: with the command that installs the right one.
    """
    if not version.startswith(_TESTED):
        raise ImportError(
            f"nats-py {version} is installed, but gangline was only tested with {_TESTED}x, since it uses parts that "
            f"may change: run `pip install 'nats-py>=2.16,<2.17'`"
        )


check_client_version(NATS_PY_VERSION)


class Interest(NamedTuple):
    """One subscription."""

    subject: str
    command: bytes
    after_pings: int
    """So many pings were sent before it."""


class BufferedNatsClient(ReconnectingClient):
    """See the module's docstring. One instance is one connection, and is opened once."""

    def __init__(
        self,
        observer: ConnectionObserver,
        *,
        jitter: Callable[[], float],
        wants_tls: bool,
        tls_context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        super().__init__(observer, jitter=jitter, wants_tls=wants_tls, tls_context=tls_context)
        self._flush_scheduled = False
        self._deliveries: dict[bytes, Callable[[Message], None]] = {}
        self._interests: dict[bytes, Interest] = {}
        """By sid; subscribed again after a reconnect."""
        self._last_sid = 0
        self._background = TaskSet("connection")
        self._turn_end: list[Callable[[], None]] = []
        """Callbacks that publish at the end of this turn."""

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Published bytes that are not yet in the kernel."""
        return int(self._pending_data_size) + self._written_bytes()

    def _written_bytes(self) -> int:
        transport = self._socket()
        return 0 if transport is None else transport.get_write_buffer_size()

    # -- sending --------------------------------------------------------------------------------------------------

    def send(self, command: bytes) -> None:
        """Queue a command; all commands queued in one turn of the loop are sent in one write."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._write_pending)

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call it once, just before the commands of this turn are written: what it queues is sent in the same write."""
        self._turn_end.append(callback)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._write_pending)

    def prompt(self, publish: Callable[[], None]) -> None:
        """Call it, and write at once what it queues, unless a write is due at the end of this turn anyway."""
        if self._flush_scheduled:
            publish()
            return
        self._flush_scheduled = True
        try:
            publish()
        finally:
            self._write_pending()

    def push(self) -> None:
        """Hand queued commands to the socket now, although more will come in this turn."""
        transport = self._socket()
        if transport is None or transport.is_closing() or self._status != Client.CONNECTED:
            return
        # uvloop also writes at the end of the turn, unless a transport has more to write than it may buffer.
        transport.set_write_buffer_limits(high=0)
        try:
            self._write()
        finally:
            transport.set_write_buffer_limits()

    def _socket(self) -> asyncio.WriteTransport | None:
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        return None if writer is None else writer.transport

    def _write_pending(self) -> None:
        while self._turn_end:
            callbacks, self._turn_end = self._turn_end, []
            for callback in callbacks:
                try:
                    callback()
                except Exception:
                    log.exception("a publisher failed at the end of its turn", extra={"action": "bus.turn_end_failed"})
        self._flush_scheduled = False
        self._write()

    def _write(self) -> None:
        if not self._pending or self._status != Client.CONNECTED or self._transport is None:
            return
        pending, self._pending = self._pending, []
        self._pending_data_size = 0
        try:
            self._transport.write(pending[0] if len(pending) == 1 else b"".join(pending))
        except Exception as error:
            # The transport is closing; the read loop sees that too and reconnects.
            log.debug("write failed: %s", error, extra={"action": "bus.write_failed"})

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """nats-py calls this after queueing one of its own commands."""
        self._write_pending()
        done = self._loop.create_future()
        done.set_result(None)
        return done

    async def writable(self, below_bytes: int) -> None:
        """Wait until less than `below_bytes` are buffered."""
        while self.buffered_bytes >= below_bytes:
            transport = self._socket()
            if transport is not None and not transport.is_closing():
                transport.set_write_buffer_limits(high=below_bytes - 1)  # `drain` waits above it
            self._write_pending()
            if not self.ready or self._transport is None:
                raise Disconnected("the connection to the nats-server was lost: try again when it is back")
            try:
                drain: Callable[[], Awaitable[None]] = self._transport.drain
                await drain()
                await asyncio.sleep(0)
            except OSError as error:
                raise Disconnected(f"the connection to the nats-server was lost ({error})") from error

    # -- subscriptions --------------------------------------------------------------------------------------------

    def add_subscription(self, subject: str, queue: str, deliver: Callable[[Message], None]) -> bytes:
        """Register interest, even while disconnected; returns the sid."""
        if self.is_closed:
            raise ClosedError("this connection was closed: open another one")
        self._last_sid += 1
        sid = str(self._last_sid).encode()
        command = f"SUB {subject} {queue} {self._last_sid}\r\n".encode()
        self._deliveries[sid] = deliver
        self._interests[sid] = Interest(subject, command, self.pings_sent)
        if self.ready:
            self.send(command)
        return sid

    def remove_subscription(self, sid: bytes) -> None:
        self._deliveries.pop(sid, None)
        self._end_interest(sid)

    def _end_interest(self, sid: bytes) -> None:
        if self._interests.pop(sid, None) is not None and self.ready:
            self.send(b"UNSUB %b\r\n" % sid)

    async def drain_subscription(self, sid: bytes) -> None:
        """End the interest; deliver messages until the server has confirmed it."""
        self._end_interest(sid)
        try:
            if sid in self._deliveries:
                await self.ping(_DRAIN_TIMEOUT_S)
        except (Disconnected, ClosedError):
            pass
        finally:
            self._deliveries.pop(sid, None)

    def subscribe_again(self, subject: str) -> bool:
        """Send once more what subscribes to this subject; False: nothing does any more."""
        commands = [interest.command for interest in self._interests.values() if interest.subject == subject]
        if commands and self.ready:
            self.send(b"".join(commands))
        return bool(commands)

    def has_subscribed(self, subject: str) -> bool:
        """Whether the server has ever answered after a subscription to this subject, which it would have refused
        before."""
        answered = self.pings_answered
        return any(one.subject == subject and one.after_pings < answered for one in self._interests.values())

    def _subscribe_again(self) -> bytes:
        return b"".join(interest.command for interest in self._interests.values())

    def _forget_subscriptions(self) -> None:
        self._deliveries.clear()
        self._interests.clear()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        # One parser per connection: no part of a broken message can leak into the next connection.
        parser = ProtocolParser(self._deliver, self._control)
        reason: Exception = nats_errors.UnexpectedEOF()
        transport = self._transport
        reader: asyncio.StreamReader | None = getattr(transport, "_io_reader", None)
        try:
            if transport is not None and reader is not None:
                self._bypass(reader, transport, parser)
                # From here on only the end of the stream can be read.
                while self._status == Client.CONNECTED and transport is self._transport:
                    if not await transport.read(_READ_BYTES):
                        break
        except (OSError, ProtocolViolation) as error:
            reason = error
        except asyncio.CancelledError:
            return
        except Exception as error:
            log.exception("the read loop failed; reconnecting", extra={"action": "bus.read_failed"})
            reason = error
        if transport is self._transport:
            self._lose(reason)

    def _bypass(self, reader: asyncio.StreamReader, transport: Any, parser: ProtocolParser) -> None:
        """Receive directly from the socket, not through the stream's buffer and a task that has to wake up."""

        def received(chunk: bytes) -> None:
            if transport is not self._transport or self._status != Client.CONNECTED:
                return
            # Replies are sent when the whole chunk is processed, without another turn of the loop.
            self._flush_scheduled = True
            try:
                parser.feed(chunk)
            except ProtocolViolation as error:
                self._lose(error)
            except Exception as error:
                # A bug of ours must cost a reconnect, not leave a connection that looks alive but receives nothing.
                log.exception("the read loop failed; reconnecting", extra={"action": "bus.read_failed"})
                self._lose(error)
            self._write_pending()

        buffered = bytes(reader._buffer)  # type: ignore[attr-defined]
        reader._buffer.clear()  # type: ignore[attr-defined]
        reader.feed_data = received  # type: ignore[method-assign, assignment]
        if buffered:
            received(buffered)

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
                extra={"action": "bus.handler_failed", "subject": message.subject},
            )

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self.send(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            self._pong()
        elif line.startswith(b"INFO"):
            self._background.start(self._update_info(line[4:]))
        elif line.startswith(b"-ERR"):
            self._observer.on_server_error(line[4:].decode("utf-8", "replace").strip().strip("'"))
            if b"stale connection" in line.lower():
                self._lose(nats_errors.StaleConnectionError())
        elif line and not line.startswith(b"+OK"):
            raise ProtocolViolation(f"unknown line {line[:80]!r}")

    async def _update_info(self, text: bytes) -> None:
        try:
            info = json.loads(text)
            self._server_info.update(info)
            self._max_payload = int(info.get("max_payload", self._max_payload))
            await self._process_info(info)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("the server sent an unreadable INFO: %s", error, extra={"action": "bus.info_invalid"})


class NatsSubscription:
    """Interest in a subject; see port.Subscription."""

    __slots__ = ("_client", "_sid", "subject")

    def __init__(self, client: BufferedNatsClient, sid: bytes, subject: str) -> None:
        self._client = client
        self._sid = sid
        self.subject = subject

    async def unsubscribe(self) -> None:
        self.stop()

    async def drain(self) -> None:
        await self._client.drain_subscription(self._sid)

    def stop(self) -> None:
        """`unsubscribe` without await; it never waits."""
        self._client.remove_subscription(self._sid)

    def __repr__(self) -> str:
        return f"<NatsSubscription {self.subject!r}>"
