"""roles: configuration for a nats-server, which a server takes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from gangline.bus.embedded.server import EmbeddedServer
from gangline.cli.app import gangline
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import DEFAULT_USERS, configuration


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gangline, ["roles", *arguments])


def test_without_users_it_is_the_file_that_is_shipped():
    assert run().output == configuration(Names(), DEFAULT_USERS)


@pytest.mark.server
def test_a_server_takes_it_for_any_namespace_account_and_users(monkeypatch):
    arguments = ["--namespace", "prod", "--account", "TASKS", "operator", "gpu-1=worker:images.w1"]
    text = run(*arguments).output
    assert "#   gangline roles --account=TASKS --namespace=prod operator gpu-1=worker:images.w1\n" in text
    assert '"$KV.PROD_LEDGER.alive.images.w1"' in text
    assert "TASKS {" in text
    for name in ("OPERATOR", "GPU_1"):
        monkeypatch.setenv(f"GANGLINE_PASSWORD_{name}", "x")
    with EmbeddedServer(config=text) as server:
        assert server.running


@pytest.mark.server
def test_a_server_takes_tenants_each_in_an_account_of_its_own(monkeypatch):
    text = run("operator", "gateway", "web@shop=producer:images", "all@lab=producer").output
    assert "separates them only weakly" not in text and "separates them only weakly" in run("operator").output
    assert '{ service: "gangline.call.images.*", accounts: [shop] }' in text
    assert '{ stream: "$KV.GANGLINE_RESULTS.result.*", accounts: [shop, lab] }' in text
    for name in ("OPERATOR", "GATEWAY", "WEB", "ALL"):
        monkeypatch.setenv(f"GANGLINE_PASSWORD_{name}", "x")
    with EmbeddedServer(config=text) as server:
        assert server.running


def test_limits_stand_in_the_file_and_in_the_command_at_its_top():
    result = run("--limit", "shop:connections=3", "operator", "web@shop=producer")
    assert "#   gangline roles --limit=shop:connections=3 operator web@shop=producer\n" in result.output
    assert "max_connections: 3," in result.output
    assert run("--limit", "shop:kings=3", "operator", "web@shop=producer").exit_code == 2


def test_a_role_that_is_none_is_one_line_and_a_code():
    result = run("shop=king")
    assert result.exit_code != 0
    assert "roles are producer, router" in result.stderr
    assert "Traceback" not in result.output
