"""Who gets what from the console: each request of an attacker is refused."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from click.testing import CliRunner

from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.app import gangline
from gangline.cli.console.options import ConnectionOptions
from gangline.console import stream
from gangline.console.guard import SESSION_S, Sessions
from gangline.console.settings import Auth, ConsoleSettings
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import InvalidSettings
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ..waiting import PATIENCE_S, until
from .conftest import ServedConsole, Visitor, event

pytestmark = pytest.mark.server


@pytest.fixture
def options(nats_url, namespace):
    return ConnectionOptions(server=nats_url, namespace=namespace)


async def signed_in(served: ServedConsole, visitor: Visitor) -> Visitor:
    await visitor.sign_in(served.link())
    return visitor


# -- where it listens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_it_listens_on_loopback_only_unless_told_who_may_look(host):
    with pytest.raises(InvalidSettings, match="--auth"):
        ConsoleSettings(host=host)
    assert ConsoleSettings(host=host, auth=Auth.TOKEN).host == host


@pytest.mark.parametrize(("host", "name"), [("0.0.0.0", "0.0.0.0:80"), ("::", "[::]:80")])
def test_all_addresses_are_no_name_of_it(host, name):
    hosts = ConsoleSettings(host=host, auth=Auth.TOKEN).allowed_hosts(80)
    assert name not in hosts and "127.0.0.1:80" in hosts
    assert "[fd00::1]:80" in ConsoleSettings(host="fd00::1", auth="token").allowed_hosts(80)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_loopback_needs_no_setting(host):
    assert ConsoleSettings(host=host).auth is None


def test_the_command_refuses_other_addresses_without_auth():
    result = CliRunner().invoke(gangline, ["console", "--listen", "0.0.0.0:0"])
    assert result.exit_code != 0 and "--auth" in result.output


def test_the_command_takes_a_port_alone_as_other_commands_do(monkeypatch):
    taken = []

    async def serve(*args, listen, **given):
        taken.append(listen)

    monkeypatch.setattr("gangline.cli.serving.console.serve", serve)
    for options in ([], ["--port", "0"], ["--port", "4300"], ["--listen", "localhost:1"]):
        assert CliRunner().invoke(gangline, ["console", *options]).exit_code == 0
    assert taken == ["127.0.0.1:4280", "127.0.0.1:0", "127.0.0.1:4300", "localhost:1"]
    both = CliRunner().invoke(gangline, ["console", "--listen", "localhost:1", "--port", "1"])
    assert both.exit_code == 2 and "--listen and --port exclude each other" in both.output


def test_a_proxy_must_be_named():
    with pytest.raises(InvalidSettings, match="--trusted-proxy"):
        ConsoleSettings(auth=Auth.PROXY)
    with pytest.raises(InvalidSettings, match="trusted proxy"):
        ConsoleSettings(auth=Auth.PROXY, trusted_proxies=["here"])


# -- signing in -----------------------------------------------------------------------------------------------------


async def test_without_signing_in_there_is_nothing_to_see(served, options):
    async with served.open(options) as visitor:
        for path in ("/", "/api/board", "/api/stream", "/api/meta", "/api/dead", "/api/worker?name=a.b", "/nothing"):
            answer = await visitor.get(path)
            assert answer.status == 401, path
            assert b"Open the link" in answer.body
        answer = await visitor.act("drain", target="a.b")
        assert answer.status == 401


async def test_a_link_signs_in_one_browser_once_and_sets_a_strict_cookie(served, options):
    async with served.open(options) as visitor:
        link = served.link()
        answer = await visitor.sign_in(link)
        cookie = answer.fields["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
        assert answer.fields["location"] == "/"
        assert (await visitor.get("/")).status == 200
        thief = Visitor(visitor.port)
        assert (await thief.get(link)).status == 401
        assert served.link() != link
        assert (await thief.sign_in(served.link())).status == 303


async def test_a_wrong_token_signs_nobody_in_and_does_not_use_up_the_link(served, options):
    async with served.open(options) as visitor:
        assert (await visitor.get("/?token=guess")).status == 401
        assert (await visitor.ask("HEAD", served.link())).status == 401
        assert (await visitor.sign_in(served.link())).status == 303
        visitor.cookie = visitor.cookie[:-3] + "xyz"
        assert (await visitor.get("/api/board")).status == 401


def test_sessions_are_bounded_and_links_are_unguessable():
    links: list[str] = []
    sessions = Sessions(links.append)
    sessions.new_link()
    first = sessions.sign_in(links[-1])
    assert first is not None and first in sessions
    for _ in range(1000):
        assert sessions.sign_in(links[-1])
    assert first not in sessions
    assert len(set(links)) == len(links) and min(map(len, links)) >= 40


def test_a_session_ends_by_itself_or_when_its_user_signs_out():
    links: list[str] = []
    now = 0.0
    sessions = Sessions(links.append, clock=lambda: now)
    sessions.new_link()
    first, second = sessions.sign_in(links[-1]), sessions.sign_in(links[-1])
    assert first is not None and second is not None
    sessions.sign_out(first)
    assert first not in sessions and second in sessions
    now = SESSION_S - 1.0
    assert second in sessions
    now = float(SESSION_S)
    assert second not in sessions


async def test_who_signs_out_sees_nothing_more_not_even_the_stream_that_is_open(served, options, monkeypatch):
    monkeypatch.setattr(stream, "PING_S", 0.05)
    async with served.open(options) as visitor:
        cookie = (await visitor.sign_in(served.link())).fields["set-cookie"]
        assert f"Max-Age={SESSION_S}" in cookie and (await visitor.get("/api/meta")).json["signs_out"] is True
        async with visitor.stream() as events:
            await event(events)
            elsewhere = await visitor.ask("POST", "/api/sign-out", {}, content_type="application/json")
            assert elsewhere.status == 403, "not from a page of the console"
            own = {"content_type": "application/json", "sec_fetch_site": "same-origin"}
            answer = await visitor.ask("POST", "/api/sign-out", {}, **own)
            assert answer.status == 204 and "Max-Age=0" in answer.fields["set-cookie"]
            async with asyncio.timeout(PATIENCE_S):
                await events.read()  # to its end
        assert (await visitor.get("/api/board")).status == 401


async def test_a_user_is_believed_only_if_a_trusted_proxy_names_it(served, options):
    async with served.open(options, auth="proxy", trusted_proxies=["127.0.0.0/8"]) as visitor:
        assert (await visitor.get("/api/meta")).status == 403
        answer = await visitor.get("/api/meta", x_forwarded_user="alice")
        assert answer.json["user"] == "alice"
    async with served.open(options, auth="proxy", trusted_proxies=["10.0.0.0/8"]) as visitor:
        assert (await visitor.get("/api/meta", x_forwarded_user="alice")).status == 403


# -- other sites ----------------------------------------------------------------------------------------------------


async def test_a_host_that_is_not_its_own_is_refused_on_every_request(served, options):
    """A name of the attacker that resolves to this address (DNS rebinding)."""
    async with served.open(options) as visitor:
        await signed_in(served, visitor)
        for path in ("/", "/api/board", "/api/stream", "/static/app.js"):
            for host in ("evil.example", f"evil.example:{visitor.port}", "127.0.0.1", "127.0.0.1:1", ""):
                assert (await visitor.get(path, host=host)).status in (400, 421), (path, host)


async def test_further_names_can_be_allowed(served, options):
    async with served.open(options, hosts=["ops.example"]) as visitor:
        await signed_in(served, visitor)
        assert (await visitor.get("/", host="ops.example")).status == 200
        assert (await visitor.get("/", host=f"localhost:{visitor.port}")).status == 200


OTHER_SITES = (
    *({"sec_fetch_site": site} for site in ("cross-site", "same-site", "none")),
    *({"origin": origin} for origin in ("http://evil.example", "null")),
    {},
)


async def test_no_method_but_get_and_head_is_answered_to_other_sites(served, options):
    async with served.open(options, operator=options, actions="all") as visitor:
        await signed_in(served, visitor)
        body = {"target": "a.b", "reason": "x"}
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PURGE"):
            for fields in OTHER_SITES:
                answer = await visitor.ask(method, "/api/act/drain", body, content_type="application/json", **fields)
                assert answer.status in (403, 405), (method, fields)


async def test_a_request_of_its_own_page_is_recognised_with_and_without_fetch_metadata(served, options):
    async with served.open(options, operator=options, actions="all") as visitor:
        await signed_in(served, visitor)
        kind = {"content_type": "application/json"}
        body = {"target": "nobody.here", "reason": "x"}
        own = await visitor.ask("POST", "/api/act/drain", body, sec_fetch_site="same-origin", **kind)
        by_origin = await visitor.ask("POST", "/api/act/drain", body, origin=f"http://{visitor.host}", **kind)
        assert own.json["error"] == by_origin.json["error"] == "no_workers"


async def test_its_own_pages_may_only_post_json(served, options):
    """Forms of other sites can send the others without being asked."""
    own = {"sec_fetch_site": "same-origin"}
    async with served.open(options, operator=options, actions="all") as visitor:
        await signed_in(served, visitor)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = await visitor.ask("POST", "/api/act/drain", {"target": "a.b"}, content_type=kind, **own)
            assert answer.status == 415, kind
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = await visitor.ask(method, "/api/act/drain", {}, content_type="application/json", **own)
            assert answer.status == 405, method
        assert (await visitor.get("/api/act/drain?target=a.b&reason=x")).status == 405


# -- what is answered -----------------------------------------------------------------------------------------------


async def test_every_answer_forbids_inline_scripts_frames_and_anything_from_elsewhere(served, options):
    async with served.open(options) as visitor:
        refused = await visitor.get("/")
        await signed_in(served, visitor)
        page = await visitor.get("/")
        for answer in (refused, page, await visitor.get("/api/board"), await visitor.get("/static/app.js")):
            policy = answer.fields["content-security-policy"]
            assert policy.startswith("default-src 'self';") and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.fields["x-content-type-options"] == "nosniff"
            assert answer.fields["referrer-policy"] == "no-referrer"
        assert "no-store" in page.fields["cache-control"]
        text = page.body.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text) and " style=" not in text and " on" + "click=" not in text
        assert not re.search(r"https?://", text)


async def test_no_path_leads_out_of_the_static_files(served, options):
    async with served.open(options) as visitor:
        await signed_in(served, visitor)
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
            answer = await visitor.get(path)
            assert answer.status in (400, 404) or b"Starlette" not in answer.body, path
            assert b"import" not in answer.body[:200]


async def test_no_token_is_in_any_page_log_or_address(served, options, caplog, nats_url, namespace):
    caplog.set_level(logging.DEBUG)
    settings = ConnectionSettings(urls=(nats_url,))
    pool = Pool("words", slots=4)

    @pool.task
    async def shout(text: str) -> str:
        return text.upper()

    bus, other = await connect_bus(settings, name="w1"), await connect_bus(settings, name="c1")
    names = Names(namespace)
    async with (
        Worker(pool, bus=bus, names=names, settings=WorkerSettings(id="w1")),
        Client(other, names=names) as client,
        client.lease("words", slots=2) as lease,
        served.open(options, show_payloads=True) as visitor,
    ):
        link = served.link()
        await signed_in(served, visitor)
        session = visitor.cookie.partition("=")[2]

        async def shown() -> bool:
            return bool((await visitor.get("/api/board")).json["rows"]["leases"])

        await until(shown)  # the ledger is written after the grant
        seen = [await visitor.get(path) for path in ("/", "/api/meta", "/api/board", "/api/worker?name=words.w1")]
        assert [answer.status for answer in seen] == [200] * 4
        assert lease.worker and seen[2].json["rows"]["leases"]
        everything = b"".join(answer.body for answer in seen).decode() + caplog.text
        for secret in (lease.token, session, link.partition("token=")[2]):
            assert secret and secret not in everything
        assert "token" not in seen[0].body.decode()
    await bus.close()
    await other.close()


# -- what it may do -------------------------------------------------------------------------------------------------


async def test_a_console_without_actions_refuses_them(served, options):
    async with served.open(options) as visitor:
        await signed_in(served, visitor)
        assert (await visitor.get("/api/meta")).json["actions"] == []
        answer = await visitor.act("drain", target="a.b")
        assert (answer.status, answer.json["error"]) == (403, "not_permitted")


async def test_only_the_allowed_actions_can_be_done(served, options):
    async with served.open(options, operator=options, actions="resize") as visitor:
        await signed_in(served, visitor)
        answer = await visitor.act("drain", target="a.b")
        assert answer.status == 400 and "not allowed" in answer.json["message"]


def test_actions_need_a_user_of_their_own():
    result = CliRunner().invoke(gangline, ["console", "--actions", "all", "--user", "eye", "--password", "x"])
    assert result.exit_code == 2 and "--actions-creds" in result.output
