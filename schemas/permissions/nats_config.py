"""Users and their permissions as configuration of a nats-server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..errors.base import InvalidRequest
from ..names import Names
from .roles import Permissions, Role, User

ACCOUNT: Final = "GANGLINE"
DEFAULT_USERS: Final = (
    *(User(name=role.value, roles=(role,)) for role in Role if role is not Role.WORKER),
    User(name="worker", roles=(Role.WORKER,)),
)
_HEAD: Final = """\
# Users of a nats-server and what each may, by their roles in Gangline. Made by:
#   {command}
#
# Take it into the server's configuration with `include roles.conf`. Each user's password is an environment variable of
# the server, for example {example}; what `nats server passwd` prints will do. For nkeys, write
# `nkey: U...` in place of user and password.
#
# Users connect with the inbox prefix that stands above each: GANGLINE_INBOX_PREFIX, or `inbox_prefix` in a context of
# the `nats` CLI. What the subjects are for: docs/how-to/permissions.md.
"""
_SYSTEM: Final = """\
  # For coordinators: a connection that breaks is known in milliseconds. Nobody logs in here unless you add users.
  SYS {{
    exports: [ {{ stream: "$SYS.ACCOUNT.{account}.DISCONNECT" }} ]
  }}
"""


def parse_user(text: str) -> User:
    """`NAME=ROLE[+ROLE...][:POOL[.WORKER]]`, for example `gpu-1=worker:images.w1`; a role alone is a user of that name.

    Raises:
        InvalidRequest, InvalidName: it cannot be understood.
    """
    name, equals, rest = text.partition("=")
    roles, _, scope = (rest if equals else name).partition(":")
    pool, _, worker = scope.partition(".")
    try:
        found = tuple(Role(role) for role in roles.split("+"))
    except ValueError:
        raise InvalidRequest(f"{text!r} is not NAME=ROLE[+ROLE][:POOL[.WORKER]]: roles are {', '.join(Role)}") from None
    return User(name=name if equals else roles, roles=found, pool=pool or "*", worker=worker or "*")


def configuration(names: Names, users: Sequence[User], *, command: str = "", account: str = ACCOUNT) -> str:
    """A file to include in a nats-server's configuration: one account with JetStream, and its users.

    Args:
        command: shown at its head, to make it again.
        account: its name.

    Raises:
        InvalidRequest: two users of one name, or none.
    """
    if not users or len({user.name for user in users}) < len(users):
        raise InvalidRequest("give users, each of another name")
    blocks = "\n".join(_user(user, names) for user in users)
    return "\n".join(
        [
            _HEAD.format(command=command or "gangline roles", example=f"{variable(users[0].name)}"),
            "system_account: SYS",
            "",
            "accounts {",
            _SYSTEM.format(account=account),
            f"  {account} {{",
            "    jetstream: enabled",
            f'    imports: [ {{ stream: {{ account: SYS, subject: "$SYS.ACCOUNT.{account}.DISCONNECT" }} }} ]',
            "    users: [",
            blocks,
            "    ]",
            "  }",
            "}",
            "",
        ]
    )


def variable(user: str) -> str:
    """The environment variable that has a user's password."""
    return f"GANGLINE_PASSWORD_{user.upper().replace('-', '_')}"


def _user(user: User, names: Names) -> str:
    allowed = user.permissions(names)
    cut = "" if user.pool == "*" else f", of {user.pool}{'' if user.worker == '*' else f'.{user.worker}'} alone"
    return "\n".join(
        [
            f"      # {' and '.join(user.roles)}{cut}. Inbox prefix: {user.inbox}",
            f"      {{ user: {user.name}, password: ${variable(user.name)}, permissions: {{",
            *_lists(allowed),
            "      } }",
        ]
    )


def _lists(allowed: Permissions) -> Iterable[str]:
    for verb, subjects in (("publish", allowed.publish), ("subscribe", allowed.subscribe)):
        yield f"          {verb}: {{ allow: ["
        yield from (f'            "{subject}"' for subject in subjects)
        yield "          ] }"
    if allowed.answers_s:
        yield f'          allow_responses: {{ max: 1, expires: "{allowed.answers_s}s" }}'
