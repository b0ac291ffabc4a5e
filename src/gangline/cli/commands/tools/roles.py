"""`gangline roles`"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...console.options import reporting
from ...console.output import echo

if TYPE_CHECKING:
    from ....schemas.names import Names
    from ....schemas.permissions.jwt_config import JwtKeys
    from ....schemas.permissions.roles import User

UPDATER: Final = "updater.creds"
"""Who changes the accounts of running servers; among the keys."""
_ANSWER_S: Final = 10.0


@click.command(short_help="Write users and permissions for a nats-server, as configuration to include.")
@click.argument("users", nargs=-1, metavar="[USER]...")
@click.option("--account", default="GANGLINE", show_default=True, metavar="NAME", help="Account of the users.")
@click.option(
    "--namespace",
    envvar="GANGLINE_NAMESPACE",
    default="gangline",
    show_default=True,
    metavar="NAME",
    help="First token of all subjects (GANGLINE_NAMESPACE).",
)
@click.option("--nkeys", is_flag=True, help="Give users nkeys instead of passwords.")
@click.option(
    "--jwt",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write JWTs of an operator, its accounts and users into this folder, with credentials for each user.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    metavar="NUMBER",
    help="Days after which new credentials of --jwt end. [as those that they replace, else never]",
)
@click.option("--renew", is_flag=True, help="Give all users of --jwt new credentials; without it, those that end soon.")
@click.option(
    "--resolver",
    "directory",
    metavar="DIR",
    help="Directory in which the servers keep the accounts of --jwt, so that --push can change them.",
)
@click.option(
    "--push",
    "server",
    metavar="URL",
    help="Send the accounts of --jwt to the running servers, too. They must have been started with --resolver.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="[ACCOUNT:]LIMIT=NUMBER",
    help="Limit an account, or all tenants: connections (in all), subscriptions (of a connection), payload (bytes of a "
    "message); for Gangline's own account also JetStream's memory and store (bytes), streams, consumers. Repeatable.",
)
@click.option("--debug", is_flag=True, envvar="GANGLINE_DEBUG", help="Show tracebacks of errors.")
def command(
    users: tuple[str, ...],
    account: str,
    namespace: str,
    nkeys: bool,
    folder: Path | None,
    days: int | None,
    renew: bool,
    directory: str | None,
    server: str | None,
    limits: tuple[str, ...],
    debug: bool,
) -> None:
    """Print nats-server configuration for the given users, each limited to what its roles need. Write it to a file and
    include the file in the server's configuration; no server is contacted, except with --push.

    A USER is NAME[@TENANT]=ROLE[+ROLE...][:POOL[.WORKER]], or a role alone. Roles are producer (submits, and calls
    through gateways), router (a Python client), owner (gangs by plain requests), gateway, worker, dispatcher,
    coordinator, observer (reads everything) and operator. Without USER: one user per role, except owner.

    Each TENANT gets its own account, which imports only what its producers, owners and workers need from Gangline's
    account. Use one for callers, or authors of tasks, you do not trust. Each is limited to 256 connections, 1000
    subscriptions and messages of 1 MiB.

    With --jwt, FOLDER gets resolver.conf to include, creds/USER.creds for each user, tenants for GANGLINE_QUOTAS of
    gateways, coordinators and dispatchers, and keys/, which only this command needs. Run it again to change users:
    credentials that are there stay valid, those of users you leave out do not. Credentials are renewed when they have
    ended, when less than a third of --days is left, and with --renew. What they replace stays valid until it ends, so
    that you can copy the new ones to one process after the other. To have credentials refused at once, remove their
    file from creds/.

    \b
    gangline roles > roles.conf
    gangline roles gateway dispatcher operator shop=router+producer gpu-1=worker:images.w1 gpu-2=worker:images.w2
    gangline roles dispatcher operator images=worker:images billing=producer:invoices
    gangline roles gateway dispatcher operator worker web@shop=producer:images batch@lab=producer:video
    gangline roles --limit connections=20 --limit lab:payload=65536 --limit GANGLINE:store=50000000000 ...
    gangline roles --jwt secrets --days 90 gateway dispatcher operator worker web@shop=producer:images
    gangline roles --jwt secrets --resolver /data/jwt --push tls://nats-1:4222 gateway dispatcher operator worker
    """
    reporting(_write, debug)(users, account, namespace, nkeys, folder, days, renew, directory, server, limits)


def _write(
    users: tuple[str, ...],
    account: str,
    namespace: str,
    nkeys: bool,
    folder: Path | None,
    days: int | None,
    renew: bool,
    directory: str | None,
    server: str | None,
    limits: tuple[str, ...],
) -> None:
    import shlex

    from ....schemas.errors.base import InvalidRequest
    from ....schemas.names import Names, check_name
    from ....schemas.permissions.nats_config import DEFAULT_USERS, configuration, parse_limit, parse_user

    check_name(account, "account")
    chosen = tuple(map(parse_user, users)) or DEFAULT_USERS
    options = [f"--account={account}"] * (account != "GANGLINE") + [f"--namespace={namespace}"] * (
        namespace != "gangline"
    )
    if nkeys and folder:
        raise InvalidRequest("--nkeys and --jwt are two forms of the same: give one of them")
    if (days or renew) and not folder:
        raise InvalidRequest(f"--{'days' if days else 'renew'} is for the credentials of --jwt FOLDER: give both")
    if (directory or server) and not folder:
        raise InvalidRequest("--resolver and --push are for the accounts that --jwt FOLDER writes: give --jwt, too")
    if server and not directory:
        raise InvalidRequest("--push needs servers that keep their accounts: give --resolver DIR, too")
    if directory and not directory.isprintable() or '"' in (directory or ""):
        raise InvalidRequest(f"--resolver {directory!r} is no directory that a server's configuration can name")
    options += (
        ["--nkeys"] * nkeys + [f"--jwt={folder}"] * (folder is not None) + [f"--days={days}"] * (days is not None)
    )
    options += [f"--resolver={directory}"] * bool(directory)
    options += [f"--limit={limit}" for limit in limits]
    line = shlex.join(["gangline", "roles", *options, *users])
    if folder:
        keys, accounts = _write_jwts(
            folder, Names(namespace), chosen, line, account, days, renew, directory or "", limits
        )
        if server:
            _push(server, folder, keys, accounts)
        return
    text = configuration(
        Names(namespace), chosen, command=line, account=account, nkeys=nkeys, limits=map(parse_limit, limits)
    )
    echo(text, nl=False)


def _write_jwts(
    folder: Path,
    names: Names,
    users: Sequence[User],
    command: str,
    account: str,
    days: int | None,
    renew: bool,
    directory: str,
    limits: Sequence[str],
) -> tuple[JwtKeys, dict[str, str]]:
    """Keys that are in the folder are kept, and credentials that do not end soon. Nothing is written unless everything
    can be."""
    from ....bus.settings.keys import KeyKind, KeyPair
    from ....schemas.permissions import jwt_config
    from ....schemas.permissions.nats_config import parse_limit
    from ....schemas.permissions.quotas import ACCOUNT_KEY

    now, secrets = int(time.time()), dict[Path, str]()

    def key(path: Path, kind: KeyKind) -> KeyPair:
        if path.exists():
            return KeyPair(path.read_text(encoding="utf-8"))
        made = KeyPair.new(kind)
        secrets[path] = f"{made.seed}\n"
        return made

    keys, (own, system, *tenants) = folder / "keys", jwt_config.accounts_of(users, account)
    issuer = _CredentialIssuer(folder=folder, now=now, days=days, renew=renew, secrets=secrets)
    accounts = {name: key(keys / "accounts" / f"{name}.nk", KeyKind.ACCOUNT) for name in (own, system, *tenants)}
    signers = jwt_config.JwtKeys(
        operator=key(keys / "operator.nk", KeyKind.OPERATOR),
        accounts=accounts,
        users={user.name: issuer.signers_of(user, accounts[user.tenant or account].public) for user in users},
    )
    written = folder / "resolver.conf"
    earlier = jwt_config.tokens_in(written.read_text(encoding="utf-8")) if written.exists() else {}
    tokens = jwt_config.account_jwts(
        names, users, signers, issued_at=now, account=account, limits=map(parse_limit, limits), earlier=earlier
    )
    text = jwt_config.resolver_configuration(signers, tokens, command=command, directory=directory)
    if directory:  # each time: what it may do grows with new versions
        updater = KeyPair.new(KeyKind.USER)
        secrets[keys / UPDATER] = jwt_config.updater_credentials(accounts[system], updater, issued_at=now)
    for path, secret in secrets.items():
        _write_secret(path, secret)
    for path in issuer.gone:
        path.unlink(missing_ok=True)
    written.write_text(text, encoding="utf-8")
    named = [f"{name}:{ACCOUNT_KEY}={accounts[name].public}\n" for name in tenants]
    (folder / "tenants").write_text("".join(named), encoding="utf-8")
    echo(f"wrote {written}; credentials in {folder / 'creds'}: {issuer.summary()}")
    return signers, tokens


@dataclass(kw_only=True)
class _CredentialIssuer:
    """Keeps, renews and adds the credentials of users."""

    folder: Path
    now: int
    days: int | None
    renew: bool
    secrets: dict[Path, str]
    """What is to be written."""
    gone: list[Path] = field(default_factory=list[Path])
    """What is to be removed."""
    counts: dict[str, int] = field(default_factory=lambda: {"new": 0, "renewed": 0, "kept": 0})
    ends: dict[str, int] = field(default_factory=dict[str, int])
    """Unix times, by user."""

    def signers_of(self, user: User, account: str) -> list[str]:
        """Public keys: that of the user's credentials, and that of the ones that these replace, if still valid."""
        from ....schemas.permissions.jwt_config import is_due

        path, earlier = (self.folder / part / f"{user.name}.creds" for part in ("creds", "keys/earlier"))
        has, had = self._claims(path, account), self._claims(earlier, account)
        if has is not None and not self.renew and not is_due(has, self.now, self.days):
            self.counts["kept"] += 1
            signers, end = [str(has["iss"])], has.get("exp")
        else:
            self.counts["new" if has is None else "renewed"] += 1
            if has is None:
                self.gone.append(earlier)  # whoever removed the file wants both refused
            else:
                self.secrets[earlier] = path.read_text(encoding="utf-8")
            had, end = has, self._end(has)
            signers = [self._issue(user, account, path, end)]
        if end is not None:
            self.ends[user.name] = end
        if had is not None and had.get("exp", self.now + 1) > self.now:
            signers.append(str(had["iss"]))
        return signers

    def _claims(self, path: Path, account: str) -> dict[str, Any] | None:
        from ....schemas.permissions.jwt_config import claims_of

        if not path.exists():
            return None
        claims = claims_of(path.read_text(encoding="utf-8"))
        return claims if claims["nats"]["issuer_account"] == account else None

    def _end(self, replaced: Mapping[str, Any] | None) -> int | None:
        if self.days is not None:
            return self.now + self.days * 86_400
        if replaced is None or "exp" not in replaced:
            return None
        return self.now + int(replaced["exp"] - replaced.get("iat", self.now))

    def _issue(self, user: User, account: str, path: Path, end: int | None) -> str:
        from ....bus.settings.keys import KeyKind, KeyPair
        from ....schemas.permissions.jwt_config import credentials

        own, signer = KeyPair.new(KeyKind.USER), KeyPair.new(KeyKind.ACCOUNT)
        self.secrets[path] = credentials(user, account, own, signer, issued_at=self.now, expires_at=end)
        return signer.public

    def summary(self) -> str:
        """`2 new, 1 kept; the first end on 2026-01-31 (web)`"""
        counted = ", ".join(f"{count} {what}" for what, count in self.counts.items() if count)
        if not self.ends:
            return counted
        first = min(self.ends, key=lambda name: self.ends[name])
        return f"{counted}; the first end on {time.strftime('%Y-%m-%d', time.gmtime(self.ends[first]))} ({first})"


def _push(server: str, folder: Path, keys: JwtKeys, accounts: dict[str, str]) -> None:
    """Have running servers take these accounts, and forget those of this folder that are left out."""
    from ....bus.nats_bus import NatsBus, connect
    from ....bus.settings.connection import ConnectionSettings
    from ....bus.settings.keys import KeyPair
    from ....schemas.errors.base import InvalidRequest
    from ....schemas.permissions import jwt_config
    from ...console.session import run

    async def ask(bus: NatsBus, subject: str, body: str = "") -> Any:
        answer = json.loads((await bus.request(subject, body.encode(), timeout_s=_ANSWER_S)).data)
        if error := answer.get("error"):
            raise InvalidRequest(f"a server refused {subject}: {error.get('description', error)}")
        return answer.get("data")

    async def push() -> None:
        environ = os.environ
        settings = ConnectionSettings.from_url(
            server,
            credentials_file=folder / "keys" / UPDATER,
            tls_ca=environ.get("NATS_CA") or None,
            tls_certificate=environ.get("NATS_CERT") or None,
            tls_key=environ.get("NATS_KEY") or None,
        )
        bus = await connect(settings, name="gangline roles")
        try:
            for name, token in accounts.items():
                account = keys.accounts[name].public
                had = (await bus.request(jwt_config.claims_lookup(account), b"", timeout_s=_ANSWER_S)).data.decode()
                if had and had != token and jwt_config.services_of(had) & jwt_config.services_of(token):
                    await ask(bus, jwt_config.CLAIMS_UPDATE, jwt_config.without_services(token, keys.operator))
                await ask(bus, jwt_config.CLAIMS_UPDATE, token)
            known = set(await ask(bus, jwt_config.CLAIMS_LIST))
            ours = {
                path.stem: KeyPair(path.read_text(encoding="utf-8")).public
                for path in (folder / "keys" / "accounts").glob("*.nk")
            }
            gone = {name: key for name, key in sorted(ours.items()) if name not in accounts and key in known}
            if gone:
                token = jwt_config.deletion_jwt(keys.operator, list(gone.values()), issued_at=int(time.time()))
                await ask(bus, jwt_config.CLAIMS_DELETE, token)
        finally:
            await bus.close()
        forgotten = f"; they have forgotten {', '.join(gone)}" if gone else ""
        echo(f"the servers have {len(accounts)} accounts{forgotten}")

    run(push())


def _write_secret(path: Path, text: str) -> None:
    """For the owner alone from the first moment."""
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    new.replace(path)
