"""Connection options go before the environment, and one identity replaces another."""

from __future__ import annotations

import pytest

from gangline.cli.console.options import ConnectionOptions, plain_environment


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    for name in ("NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "NATS_CREDS", "NATS_NKEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_nothing_given_is_the_default_server():
    assert ConnectionOptions().settings().safe_urls == ("nats://127.0.0.1:4222",)


def test_an_option_goes_before_its_variable(monkeypatch):
    monkeypatch.setenv("NATS_URL", "nats://env:1")
    assert ConnectionOptions().settings().safe_urls == ("nats://env:1",)
    assert ConnectionOptions(server="nats://a:1,nats://b:2").settings().safe_urls == ("nats://a:1", "nats://b:2")


def test_an_identity_as_option_replaces_one_of_another_kind_from_the_environment(monkeypatch):
    monkeypatch.setenv("NATS_USER", "u")
    monkeypatch.setenv("NATS_PASSWORD", "p")
    settings = ConnectionOptions(token="t").settings()
    assert (settings.token, settings.user, settings.password) == ("t", "", "")


def test_a_context_fills_in_what_no_option_says(tmp_path):
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "prod.json").write_text('{"url": "nats://prod:4222", "user": "u", "password": "p"}')
    settings = ConnectionOptions(context="prod").settings()
    assert (settings.safe_urls, settings.user) == (("nats://prod:4222",), "u")
    assert ConnectionOptions(context="prod", server="nats://other:1").settings().safe_urls == ("nats://other:1",)


def test_a_child_gets_everything_by_its_environment_and_nothing_by_arguments():
    connection = ConnectionOptions(
        server="nats://a:1", password="p", user="u", inbox_prefix="_INBOX.u", tlsfirst=True, namespace="n"
    )
    own = {"GANGLINE_INBOX_PREFIX": "_INBOX.u", "GANGLINE_NAMESPACE": "n", "GANGLINE_TLSFIRST": "1"}
    nats = {"NATS_URL": "nats://a:1", "NATS_USER": "u", "NATS_PASSWORD": "p"}
    assert connection.environment({}) == {**nats, **own}


def test_children_of_an_embedded_server_hear_nothing_of_another_one():
    assert plain_environment({"NATS_URL": "x", "NATS_TOKEN": "t", "PATH": "/bin"}) == {"PATH": "/bin"}
    assert ConnectionOptions(server="x", token="t", namespace="n").only("y") == ConnectionOptions(
        server="y", namespace="n"
    )
