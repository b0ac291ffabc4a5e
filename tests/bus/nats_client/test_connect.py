"""Who we are, whom we trust, and what is said when that fails."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import shutil
import socket
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import nkeys
import pytest
from nats import errors as nats_errors

from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import BucketSettings, ConnectionEvent, StorageUnavailable
from gangline.schemas.errors.base import InvalidSettings, ServerUnreachable, ServerUnsupported

from ...support.bus.identities import make_credentials, make_key
from ...waiting import PATIENCE_S, until
from ..conftest import happens

pytestmark = pytest.mark.server

TLS = Path(__file__).resolve().parents[2] / "support" / "bus" / "tls"
# The authority's key was thrown away; the certificates name 127.0.0.1 and last a hundred years.
needs_keys = pytest.mark.skipif(not (TLS / "server.key").exists(), reason="the source distribution has no private keys")
TLS_FILES = f'cert_file: "{TLS}/server.pem", key_file: "{TLS}/server.key"'


@asynccontextmanager
async def listening(talk):
    """The address of something that is no nats-server."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def works(bus):
    await bus.subscribe("connection.echo", lambda message: bus.publish(message.reply, message.data))
    return (await bus.request("connection.echo", b"x", timeout_s=PATIENCE_S)).data == b"x"


async def test_user_and_password(connect_to, secured):
    server = secured('authorization { user: bob, password: "s:e@c" }')
    assert await works(await connect_to(server.url, user="bob", password="s:e@c"))
    assert await works(await connect_to(server.url.replace("//", "//bob:s%3Ae%40c@")))
    bus = await connect_to(server.url.replace("//", "//mallory:x@"), user="bob", password="s:e@c")
    assert await works(bus)


async def test_a_token(connect_to, secured):
    server = secured("authorization { token: t0ken }")
    assert await works(await connect_to(server.url, token="t0ken"))
    assert await works(await connect_to(server.url.replace("//", "//t0ken@")))


async def test_an_nkey(connect_to, secured, tmp_path):
    seed, public = make_key(nkeys.PREFIX_BYTE_USER)
    file = tmp_path / "user.nk"
    file.write_bytes(seed + b"\n")
    server = secured(f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
    bus = await connect_to(server.url, nkey_file=file)
    assert await works(bus)
    await happens(bus, ConnectionEvent.RECONNECTED, server.restart)
    assert bus.connected


async def test_a_credentials_file(connect_to, secured, tmp_path):
    file, config = make_credentials(tmp_path)
    server = secured(config, jetstream=False)
    assert await works(await connect_to(server.url, credentials_file=file))


@pytest.mark.parametrize("identity", [{}, {"user": "bob", "password": "wrong"}, {"token": "wrong"}])
async def test_a_wrong_identity_is_refused_at_once_and_the_text_has_no_secret(settings_of, secured, identity):
    server = secured("authorization { user: bob, password: secret }")
    with pytest.raises(ServerUnreachable) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await connect_jetstream(settings_of(server.url, connect_timeout_s=5 * PATIENCE_S, **identity))
    assert "authorization violation" in str(caught.value)
    assert server.url in str(caught.value)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("field", ["credentials_file", "nkey_file"])
async def test_a_file_without_a_key_in_it_says_so(settings_of, secured, tmp_path, field):
    file = tmp_path / "broken"
    file.write_text("this is no key\n")
    seed, public = make_key(nkeys.PREFIX_BYTE_USER)
    server = secured(f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
    with pytest.raises(InvalidSettings, match="cannot be used"):
        await connect_jetstream(settings_of(server.url, **{field: file}))


@needs_keys
async def test_tls_with_a_server_signed_by_our_authority(connect_to, secured):
    server = secured(f"tls {{ {TLS_FILES} }}")
    url = server.url.replace("nats://", "tls://")
    bus = await connect_to(url, tls_ca=TLS / "ca.pem")
    assert await works(bus)
    assert bus._client._is_encrypted()
    big = await bus.request("connection.echo", b"x" * 900_000, timeout_s=PATIENCE_S)
    assert len(big.data) == 900_000
    await happens(bus, ConnectionEvent.RECONNECTED, server.restart)
    assert bus.connected


@needs_keys
def test_the_end_of_a_tls_connection_makes_no_noise_on_a_loop_of_asyncios_own(settings_of, secured, caplog):
    server = secured(f"tls {{ {TLS_FILES} }}")

    async def life():
        bus = await connect_jetstream(settings_of(server.url, tls_ca=TLS / "ca.pem"))
        assert await works(bus)
        await happens(bus, ConnectionEvent.RECONNECTED, server.restart)
        await bus.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(life())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@needs_keys
async def test_tls_with_our_own_certificate(connect_to, settings_of, secured):
    server = secured(f'tls {{ {TLS_FILES}, ca_file: "{TLS}/ca.pem", verify: true }}')
    mine = {"tls_certificate": TLS / "client.pem", "tls_key": TLS / "client.key"}
    assert await works(await connect_to(server.url, tls_ca=TLS / "ca.pem", **mine))
    with pytest.raises(ServerUnreachable):
        await connect_jetstream(settings_of(server.url, tls_ca=TLS / "ca.pem", connect_timeout_s=1))


@needs_keys
async def test_tls_before_anything_is_said(connect_to, secured):
    server = secured(f"tls {{ {TLS_FILES}, handshake_first: true }}")
    assert await works(await connect_to(server.url, tls_ca=TLS / "ca.pem", tls_first=True))


@needs_keys
async def test_an_unknown_authority_is_refused_at_once(settings_of, secured):
    server = secured(f"tls {{ {TLS_FILES} }}")
    url = server.url.replace("nats://", "tls://")
    with pytest.raises(ServerUnreachable, match="no TLS with .*certificate"):
        async with asyncio.timeout(PATIENCE_S):
            await connect_jetstream(settings_of(url, connect_timeout_s=5 * PATIENCE_S))


@needs_keys
async def test_a_server_without_tls_gets_no_password_when_tls_was_asked_for(settings_of):
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.12.0","max_payload":1000,"headers":true}\r\n')
        heard.extend(await reader.read(1000))
        writer.close()

    async with listening(plain) as address:
        with pytest.raises(ServerUnreachable, match="TLS"):
            await connect_jetstream(settings_of(f"tls://{address}", user="bob", password="secret", connect_timeout_s=1))
    assert b"secret" not in heard


@needs_keys
async def test_a_password_that_crosses_the_network_in_plain_text_is_told_of(connect_to, secured, monkeypatch, caplog):
    def told() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.__dict__.get("action") == "bus.plain_text"]
        caplog.clear()
        return found

    plain = secured("authorization { user: bob, password: secret }")
    await connect_to(plain.url, user="bob", password="secret")
    assert told() == []  # it stays on this machine
    monkeypatch.setattr(ipaddress.IPv4Address, "is_loopback", False)
    for url, identity in ((plain.url, {"user": "bob", "password": "secret"}), (_with_password(plain.url), {})):
        await connect_to(url, **identity)
        [line] = told()
        assert "127.0.0.1 without TLS" in line and "secret" not in line
    encrypted = secured(f"tls {{ {TLS_FILES} }}\nauthorization {{ user: bob, password: secret }}")
    await connect_to(encrypted.url, user="bob", password="secret", tls_ca=TLS / "ca.pem")
    await connect_to(secured("").url)
    assert told() == []


def _with_password(url: str) -> str:
    return url.replace("//", "//bob:secret@")


@pytest.mark.parametrize("waits", [True, False], ids=["", "a command"])
async def test_of_several_addresses_the_one_that_lives_is_found(connect_to, nats_url, waits):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        for _ in range(4):  # they are tried in random order
            assert await works(await connect_to(f"{dead},{nats_url}", wait_for_server=waits))


async def test_a_command_does_not_wait_for_a_server_that_refuses_connections(settings_of):
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        both = ",".join(f"nats://127.0.0.1:{each.getsockname()[1]}" for each in (first, second))
        # The timeout would fail the test, if it waited.
        settings = settings_of(both, wait_for_server=False, connect_timeout_s=5 * PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ServerUnreachable, match=r"^cannot connect to [^ ]+, [^ ]+ \(\[Errno 111\]"):
                await connect_jetstream(settings)


async def test_a_cancelled_connect_leaves_nothing_open(settings_of):
    accepted, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read(1)
        closed.set()
        writer.close()

    async with listening(silent) as address:
        connecting = asyncio.ensure_future(connect_jetstream(settings_of(address, connect_timeout_s=5 * PATIENCE_S)))
        await accepted.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()


async def test_something_that_is_no_nats_server_is_an_error(settings_of):
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await reader.read(1)
        writer.close()

    async with listening(other) as address:
        with pytest.raises(ServerUnreachable, match="INFO"):
            await connect_jetstream(settings_of(address, connect_timeout_s=1))


async def test_the_name_is_shown_in_the_servers_list(connect_to, secured):
    server = secured("system_account: SYS\naccounts { SYS { users: [{user: sys, password: x}] } }\n", jetstream=False)
    bus = await connect_to(server.url.replace("//", "//sys:x@"), name="my worker")
    answer = await bus.request("$SYS.REQ.SERVER.PING.CONNZ", b"{}", timeout_s=PATIENCE_S)
    assert "my worker" in {connection.get("name") for connection in json.loads(answer.data)["data"]["connections"]}


async def test_a_server_without_jetstream_is_refused_with_its_version(connect_to, secured, namespace):
    bus = await connect_to(secured("", jetstream=False).url)
    with pytest.raises(ServerUnsupported, match=r"\(\d+\.\d+\.\d+\) has no JetStream.*-js"):
        await bus.bucket(namespace, BucketSettings())


async def test_an_account_without_jetstream_is_refused(connect_to, secured, namespace):
    server = secured("accounts { A { users: [{user: a, password: x}] } }")
    bus = await connect_to(server.url.replace("//", "//a:x@"))
    with pytest.raises(ServerUnsupported, match="for our account"):
        await bus.bucket(namespace, BucketSettings())


async def test_an_older_server_is_refused_with_its_version(bus, namespace):
    bus._client._server_info["version"] = "2.11.4"
    with pytest.raises(ServerUnsupported, match=r"2\.11\.4.*2\.12 or later"):
        await bus.bucket(namespace, BucketSettings())


async def test_a_bucket_made_by_others_without_what_we_need_is_refused(bus, namespace):
    name = f"{namespace}_LEDGER"
    plain = {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1}
    await bus.api.call(f"STREAM.CREATE.KV_{name}", {**plain, "storage": "memory"}, what="make it")
    with pytest.raises(InvalidSettings, match="allow_atomic.*nats stream edit"):
        await bus.bucket(name, BucketSettings())


async def test_more_copies_than_servers_is_an_error_that_says_so(connect_to, nats_url, namespace):
    bus = await connect_to(nats_url, storage_timeout_s=1)
    with pytest.raises(StorageUnavailable, match="replicas"):
        await bus.bucket(namespace, BucketSettings(replicas=3))


async def test_closing_while_disconnected_ends_the_tries(bus, nats_server):
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    await bus.close()
    assert not bus.connected


@needs_keys
async def test_replaced_tls_files_are_read_again_and_failures_are_named(connect_to, secured, tmp_path, caplog):
    for file in ("ca.pem", "server.pem", "server.key"):
        shutil.copy(TLS / file, tmp_path)
    server = secured(f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key" }}')
    bus = await connect_to(server.url, tls_ca=tmp_path / "ca.pem")
    shutil.copy(TLS / "other.pem", tmp_path / "server.pem")
    shutil.copy(TLS / "other.key", tmp_path / "server.key")
    with caplog.at_level(logging.INFO, "gangline.bus"):
        server.restart()

        def causes() -> list[str]:
            return [
                record.cause for record in caplog.records if getattr(record, "action", "") == "bus.reconnect_failed"
            ]

        await until(lambda: "tls" in causes())
        (tmp_path / "ca.pem").write_text("half writ", encoding="utf-8")
        await until(lambda: "file" in causes())
        await happens(bus, ConnectionEvent.RECONNECTED, lambda: shutil.copy(TLS / "other.pem", tmp_path / "ca.pem"))
        assert await works(bus)
    assert causes().count("tls") == causes().count("file") == 1


async def test_each_cause_of_failing_to_reconnect_is_warned_of_once(bus, caplog):
    refused, login = ConnectionRefusedError(111, "refused"), nats_errors.Error("nats: 'Authorization Violation'")
    full = nats_errors.Error("nats: 'maximum connections exceeded'")
    bus.on_disconnected("test")
    for error in (refused, refused, login, login, refused, full, ssl.SSLError("expired"), login):
        bus.on_attempt_failed(error)
    bus.on_reconnected()
    bus.on_attempt_failed(refused)
    said = [record for record in caplog.records if getattr(record, "action", "") == "bus.reconnect_failed"]
    assert [record.cause for record in said] == ["unreachable", "credentials", "limit", "tls", "unreachable"]
    assert "max_connections" in said[2].getMessage()
    assert "check the user and password" in said[1].getMessage()
