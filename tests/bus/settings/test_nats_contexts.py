"""Reading the `nats` CLI's contexts and environment."""

from __future__ import annotations

import json

import pytest

from gangline.bus.settings.connection import DEFAULT_URL, ConnectionSettings, context_names, selected_context
from gangline.schemas.errors.base import InvalidSettings

from ...support.rows import in_rows


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty configuration folder, and an environment without NATS variables."""
    import os

    for name in [name for name in os.environ if name.startswith("NATS")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "nats"
    (folder / "context").mkdir(parents=True)
    return folder


def add(home, name, **values):
    (home / "context" / f"{name}.json").write_text(json.dumps(values))


def test_a_context_as_the_cli_writes_it_is_read(home, tmp_path):
    creds = tmp_path / "me.creds"
    creds.write_text("x")
    identities = ("token", "user", "password", "nkey", "cert", "key", "ca", "nsc", "user_jwt", "socks_proxy")
    empty = dict.fromkeys((*identities, "jetstream_domain", "jetstream_api_prefix", "jetstream_event_prefix"), "")
    values = {"description": "Production", "url": "nats://a:4222,nats://b:4222", "creds": str(creds), "tls_first": True}
    add(home, "prod", **empty, **values, inbox_prefix="_INBOX_me")
    settings = ConnectionSettings.from_context("prod")
    assert settings.urls == ("nats://a:4222", "nats://b:4222")
    assert settings.credentials_file == creds
    assert settings.inbox_prefix == "_INBOX_me"
    assert settings.tls_first


def test_the_selected_context_is_the_default(home):
    add(home, "one", url="nats://one:4222")
    add(home, "two", url="nats://two:4222", user="u", password="p")
    (home / "context.txt").write_text("two\n")
    assert selected_context() == "two"
    assert context_names() == ["one", "two"]
    assert ConnectionSettings.from_context().urls == ("nats://two:4222",)
    assert ConnectionSettings.from_environment().user == "u"


def test_a_context_without_an_address_means_the_default_address(home):
    add(home, "bare", user="u", password="p")
    assert ConnectionSettings.from_context("bare").urls == (DEFAULT_URL,)


def test_a_user_without_a_password_is_a_token_as_in_the_cli(home):
    add(home, "tok", user="s3cret")
    settings = ConnectionSettings.from_context("tok")
    assert (settings.user, settings.token) == ("", "s3cret")


def test_arguments_go_before_the_context(home):
    add(home, "one", url="nats://one:4222", inbox_prefix="_MINE")
    settings = ConnectionSettings.from_context("one", urls=("nats://other:1",), name="me")
    assert settings.urls == ("nats://other:1",)
    assert settings.inbox_prefix == "_MINE"
    assert settings.name == "me"


@in_rows("name", ["nope", "", "../secrets", ".hidden"])
def test_an_unknown_context_is_an_error_that_lists_the_known_ones(home, name):
    add(home, "one", url="nats://one:4222")
    with pytest.raises(InvalidSettings, match="'one'"):
        ConnectionSettings.from_context(name)


def test_without_any_context_the_error_says_so(home):
    with pytest.raises(InvalidSettings, match="nats context select.*none so far"):
        ConnectionSettings.from_context()


def test_a_broken_file_is_named(home):
    (home / "context" / "bad.json").write_text("{")
    with pytest.raises(InvalidSettings, match=r"bad\.json.*repair the file"):
        ConnectionSettings.from_context("bad")
    (home / "context" / "list.json").write_text("[]")
    with pytest.raises(InvalidSettings, match="not a JSON object"):
        ConnectionSettings.from_context("list")


@in_rows("key", ["nsc", "user_jwt", "socks_proxy", "jetstream_domain"])
def test_what_is_not_supported_is_refused_and_not_ignored(home, key):
    add(home, "odd", url="nats://one:4222", **{key: "something"})
    with pytest.raises(InvalidSettings, match=key):
        ConnectionSettings.from_context("odd")


def test_nothing_set_means_the_default_address(home):
    assert ConnectionSettings.from_environment() == ConnectionSettings()


def test_the_environment_is_read_as_the_cli_does(home, tmp_path):
    for name in ("c", "k", "ca", "seed"):
        (tmp_path / name).write_text("x")
    environ = {
        "XDG_CONFIG_HOME": str(home.parent),
        "NATS_URL": "tls://a:1,tls://b:2",
        "NATS_NKEY": str(tmp_path / "seed"),
        "NATS_CERT": str(tmp_path / "c"),
        "NATS_KEY": str(tmp_path / "k"),
        "NATS_CA": str(tmp_path / "ca"),
    }
    settings = ConnectionSettings.from_environment(environ)
    assert settings.urls == ("tls://a:1", "tls://b:2")
    assert settings.nkey_file == tmp_path / "seed"
    assert (settings.tls_certificate, settings.tls_key, settings.tls_ca) == tuple(
        tmp_path / name for name in ("c", "k", "ca")
    )


@pytest.mark.parametrize(
    ("environ", "user", "password", "token"),
    [
        ({"NATS_USER": "u", "NATS_PASSWORD": "p"}, "u", "p", ""),
        ({"NATS_USER": "t"}, "", "", "t"),
        ({"NATS_TOKEN": "t"}, "", "", "t"),
    ],
)
def test_identities_from_the_environment(home, environ, user, password, token):
    settings = ConnectionSettings.from_environment({**environ, "XDG_CONFIG_HOME": str(home.parent)})
    assert (settings.user, settings.password, settings.token) == (user, password, token)


def test_a_named_context_is_the_base_and_variables_replace_its_parts(home):
    add(home, "prod", url="nats://prod:4222", token="t", inbox_prefix="_MINE")
    environ = {"XDG_CONFIG_HOME": str(home.parent), "NATS_CONTEXT": "prod"}
    assert ConnectionSettings.from_environment(environ).token == "t"
    settings = ConnectionSettings.from_environment({**environ, "NATS_USER": "u", "NATS_PASSWORD": "p"})
    assert (settings.user, settings.token, settings.inbox_prefix) == ("u", "", "_MINE")
    settings = ConnectionSettings.from_environment({**environ, "NATS_URL": "nats://other:1"})
    assert (settings.urls, settings.token) == (("nats://other:1",), "t")
    settings = ConnectionSettings.from_environment({**environ, "GANGLINE_INBOX_PREFIX": "_INBOX.me"})
    assert (settings.token, settings.inbox_prefix) == ("t", "_INBOX.me")


def test_the_secrets_of_the_selected_context_do_not_go_to_another_server(home):
    add(home, "prod", url="nats://prod:4222", token="t")
    (home / "context.txt").write_text("prod")
    environ = {"XDG_CONFIG_HOME": str(home.parent), "NATS_URL": "nats://other:1"}
    assert ConnectionSettings.from_environment(environ).token == ""
