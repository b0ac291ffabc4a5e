from __future__ import annotations

import os
import pwd
import ssl
from pathlib import Path

import pytest

from gangline.bus.settings.connection import DEFAULT_URL, ConnectionSettings, config_folder
from gangline.schemas.errors.base import InvalidSettings

from ...support.rows import in_rows


def test_the_default_is_the_local_server_without_identity():
    settings = ConnectionSettings()
    assert settings.urls == (DEFAULT_URL,)
    assert settings.tls_context() is None


@in_rows(
    ("given", "urls"),
    [
        ("localhost", ("nats://localhost:4222",)),
        ("localhost:1234", ("nats://localhost:1234",)),
        ("nats://a, tls://b:5", ("nats://a:4222", "tls://b:5")),
        ("nats://me:pass@a:1", ("nats://me:pass@a:1",)),
        ("nats://[::1]:4222", ("nats://[::1]:4222",)),
        ("a,b,", ("nats://a:4222", "nats://b:4222")),
    ],
)
def test_addresses_may_be_short(given, urls):
    assert ConnectionSettings.from_url(given).urls == urls
    assert ConnectionSettings(urls=given).urls == urls  # type: ignore[arg-type]


@in_rows(
    ("fields", "text"),
    [
        ({"urls": ()}, "at least one address"),
        ({"urls": ("",)}, "empty"),
        ({"urls": ("http://a",)}, "use nats:// or tls://"),
        ({"urls": ("ws://a",)}, "use nats:// or tls://"),
        ({"urls": ("nats://a:port",)}, "write nats://host:port"),
        ({"urls": ("nats://",)}, "no host"),
        ({"credentials_file": "/nowhere/x.creds"}, "'/nowhere/x.creds' is not a file"),
        ({"tls_ca": "/nowhere/ca.pem"}, "tls_ca '/nowhere/ca.pem' is not a file"),
        ({"user": "a", "password": "b", "token": "c"}, "user and token are both given"),
        ({"password": "b"}, "password is given without user"),
        ({"inbox_prefix": ""}, "inbox_prefix"),
        ({"inbox_prefix": "a.*"}, "no spaces or wildcards"),
        ({"inbox_prefix": "a."}, "no dot at the end"),
        ({"connect_timeout_s": 0}, "connect_timeout_s is 0: give seconds between 0.1 and 300"),
        ({"connect_timeout_s": True}, "connect_timeout_s"),
        ({"storage_timeout_s": 1000}, "storage_timeout_s is 1000"),
        ({"ping_interval_s": "5"}, "ping_interval_s is '5'"),
        ({"reconnect_wait_s": float("nan")}, "reconnect_wait_s is nan"),
    ],
)
def test_a_bad_value_is_refused_with_what_to_do(fields, text):
    with pytest.raises(InvalidSettings) as caught:
        ConnectionSettings(**fields)
    assert text in str(caught.value)


def test_a_certificate_needs_its_key(tmp_path):
    file = tmp_path / "cert.pem"
    file.write_text("x")
    with pytest.raises(InvalidSettings, match="give both, or neither"):
        ConnectionSettings(tls_certificate=file)


def test_files_that_are_not_pem_are_refused_when_the_context_is_made(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("not a certificate")
    with pytest.raises(InvalidSettings, match="must be PEM files"):
        ConnectionSettings(tls_ca=file).tls_context()


def test_a_tls_address_alone_asks_for_a_context_that_checks_the_server():
    context = ConnectionSettings.from_url("tls://a").tls_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_no_secret_is_shown():
    settings = ConnectionSettings(urls=("nats://bob:hunter2@host:4222",), user="alice", password="sesame")
    shown = repr(settings) + str(settings) + f"{settings!r}"
    for secret in ("hunter2", "bob", "alice", "sesame"):
        assert secret not in shown
    assert "host:4222" in shown
    assert "t0ken" not in repr(ConnectionSettings(token="t0ken"))
    assert settings.safe_urls == ("nats://host:4222",)


def test_an_error_about_an_address_does_not_show_its_password():
    with pytest.raises(InvalidSettings) as caught:
        ConnectionSettings.from_url("http://bob:hunter2@host")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidSettings) as caught:
        ConnectionSettings.from_url("nats://bob:hunter2@host:x")
    assert "hunter2" not in str(caught.value)


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.creds").write_text("x")
    assert ConnectionSettings(credentials_file="~/my.creds").credentials_file == tmp_path / "my.creds"  # type: ignore[arg-type]


def test_contexts_are_looked_for_where_the_nats_cli_does(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    of_the_user = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert config_folder({}) == of_the_user / ".config" / "nats"
    assert config_folder({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/nats")
