"""roles: configuration for a nats-server, which a server takes."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner, Result

from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.bus.settings.keys import KeyPair
from gangline.cli.app import gangline
from gangline.schemas.errors.base import ServerUnreachable
from gangline.schemas.names import Names
from gangline.schemas.permissions.jwt_config import claims_of
from gangline.schemas.permissions.nats_config import DEFAULT_USERS, configuration
from gangline.schemas.permissions.quotas import parse_quotas


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
    assert '{ service: "gangline.call.images.*", accounts: [shop], threshold: "86400s" }' in text
    assert '{ stream: "$KV.GANGLINE_RESULTS.result.*", accounts: [shop, lab] }' in text
    for name in ("OPERATOR", "GATEWAY", "WEB", "ALL"):
        monkeypatch.setenv(f"GANGLINE_PASSWORD_{name}", "x")
    with EmbeddedServer(config=text) as server:
        assert server.running


def test_jwts_are_written_with_secrets_for_their_owner_alone(tmp_path):
    folder = tmp_path / "new" / "secrets"
    done = run("--jwt", str(folder), "--days", "30", "operator", "web@shop=producer:images")
    assert done.exit_code == 0 and str(folder / "resolver.conf") in done.output
    secrets = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".nk", ".creds")}
    accounts = {f"keys/accounts/{name}.nk" for name in ("GANGLINE", "SYS", "shop")}
    assert secrets == {"keys/operator.nk", "creds/operator.creds", "creds/web.creds", *accounts}
    assert {(folder / name).stat().st_mode & 0o777 for name in secrets} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*")) if path.is_dir()} == {0o700}
    seeds = [(folder / name).read_text().strip().splitlines()[-2:] for name in secrets]
    text = (folder / "resolver.conf").read_text()
    assert not [line for lines in seeds for line in lines if line in text]
    shop = KeyPair((folder / "keys" / "accounts" / "shop.nk").read_text()).public
    assert parse_quotas((folder / "tenants").read_text().split()).tenant_of(shop) == "shop"
    claims = claims_of((folder / "creds" / "web.creds").read_text())
    assert claims["exp"] - claims["iat"] == 30 * 86_400


DAY = 86_400


def end_of(folder, name="operator"):
    return claims_of((folder / "creds" / f"{name}.creds").read_text()).get("exp")


def test_credentials_are_renewed_before_they_end_and_it_says_which(tmp_path, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)

    def write(*options):
        done = run("--jwt", str(tmp_path), *options, "operator", "dispatcher")
        assert done.exit_code == 0, done.output
        return done.output.strip().partition(": ")[2]

    assert write("--days", "1").startswith("2 new; the first end on ")
    ends = end_of(tmp_path)
    assert write("--days", "1").startswith("2 kept; the first end on ") and end_of(tmp_path) == ends
    assert write("--days", "90").startswith("2 renewed; ") and end_of(tmp_path) == int(now) + 90 * DAY
    now += 59 * DAY
    assert write("--days", "90").startswith("2 kept; ")
    now += 2 * DAY
    assert write().startswith("2 renewed; ") and end_of(tmp_path) == int(now) + 90 * DAY, "as those before"
    now += 100 * DAY
    assert write().startswith("2 renewed; ") and end_of(tmp_path) == int(now) + 90 * DAY
    (tmp_path / "creds" / "operator.creds").unlink()
    assert write().startswith("1 new, 1 kept; ") and not (tmp_path / "keys" / "earlier" / "operator.creds").exists()
    assert end_of(tmp_path) is None
    assert write("--renew").startswith("2 renewed; ")


@pytest.mark.server
async def test_what_is_replaced_stays_valid_until_its_file_is_removed(tmp_path):
    async def works(path) -> bool:
        settings = ConnectionSettings(
            urls=(server.url,), credentials_file=path, inbox_prefix="_INBOX.operator", wait_for_server=False
        )
        try:
            await (await connect(settings, name="test")).close()
        except ServerUnreachable:
            return False
        return True

    new, old = tmp_path / "creds" / "operator.creds", tmp_path / "keys" / "earlier" / "operator.creds"
    for options, left in ([[], [new]], [["--renew"], [new, old]], [None, [new]]):
        if options is None:
            copy = tmp_path / "copy.creds"
            copy.write_text(new.read_text())
            new.unlink()
        assert run("--jwt", str(tmp_path), *(options or ()), "operator").exit_code == 0
        with EmbeddedServer(config=(tmp_path / "resolver.conf").read_text()) as server:
            assert [await works(path) for path in left] == [True] * len(left)
            assert options is not None or not await works(copy)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--renew", "operator"], "give both"),
        (["--nkeys", "--jwt", "FOLDER", "operator"], "two forms"),
        (["--days", "3", "operator"], "give both"),
        (["--resolver", "/data/jwt", "operator"], "give --jwt, too"),
        (["--jwt", "FOLDER", "--push", "nats://127.0.0.1:1", "operator"], "give --resolver DIR, too"),
        (["--jwt", "FOLDER", "--resolver", 'a"b', "operator"], "no directory"),
        (["--jwt", "FOLDER", "operator", "operator"], "different names"),
        (["--jwt", "FOLDER", "--limit", "shop:connections=3", "operator"], "no account 'shop'"),
    ],
)
def test_jwts_that_cannot_be_leave_no_files(tmp_path, arguments, why):
    folder = tmp_path / "secrets"
    done = run(*(str(folder) if each == "FOLDER" else each for each in arguments))
    assert done.exit_code == 2 and why in done.stderr
    assert not folder.exists()


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
