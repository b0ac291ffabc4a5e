"""The matrix of docs/reference/permissions.md, tried on a server: what a cell allows arrives, all else is refused.

Somebody whom nothing limits listens to all of Gangline's account, and sends to each subject that others may hear. A
thief in each tenant's account, whom no lists limit either, shows what the account alone keeps away.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Connection

from gangline.schemas.names import Names

from ..support.scripts import script
from .conftest import PASSWORD, Site

pytestmark = pytest.mark.server


pages = script("generate.py")
EVERYBODY = (*pages.MATRIX_USERS, *pages.TENANTS)
USERS = {user.name: user for user in pages.matrix_users()}
THIEVES = {f"thief-{user.tenant}": user for user in USERS.values() if user.tenant}
"""Each in the account of that user."""
FREE = {"GANGLINE": "spy"} | {user.tenant: thief for thief, user in THIEVES.items()}


@pytest.fixture
def whole(site_in_form) -> Site:
    """With all users of the matrix, and those whom nothing limits."""
    site: Site = site_in_form(*EVERYBODY, free=FREE)
    return site


@contextlib.asynccontextmanager
async def connected(site: Site, user: str, refusals: list[str] | None = None) -> AsyncIterator[Connection]:
    async def note(error: Exception) -> None:
        if refusals is not None and "permissions violation" in str(error).lower():
            refusals.append(str(error))

    file = site.credentials(user)
    identity: dict[str, Any] = {"user_credentials": str(file)} if file else {"user": user, "password": PASSWORD}
    connection = await nats.connect(site.server.url, **identity, inbox_prefix=f"_INBOX.{user}".encode(), error_cb=note)
    try:
        yield connection
    finally:
        await connection.close()


async def settle(connection: Connection) -> None:
    """Everything sent so far has been handled by the server, and everything for us that came of it is here.

    nats-py's flush sends its PING before the commands that it has not written yet; the next PING comes after them.
    """
    await connection.flush()
    await connection.flush()


async def published(site: Site, user: str, subjects: Iterable[str], refusals: list[str]) -> set[str]:
    """Which of the subjects reach Gangline's account."""
    async with connected(site, "spy") as spy, connected(site, user, refusals) as connection:
        everything = await spy.subscribe(">")
        await settle(spy)
        for subject in subjects:
            await connection.publish(subject, user.encode())
        await settle(connection)
        await settle(spy)
        messages = [await everything.next_msg() for _ in range(everything.pending_msgs)]
        # The server has added the tenant to its tasks.
        return {message.subject.partition(".@")[0] for message in messages if message.data == user.encode()}


async def heard(site: Site, user: str, subjects: Iterable[str], refusals: list[str]) -> set[str]:
    """Which of the subjects, with a queue group after a blank, reach the user from Gangline's account."""
    async with connected(site, "spy") as spy, connected(site, user, refusals) as connection:
        subscriptions = {}
        for each in subjects:
            subject, _, queue = each.partition(" ")
            subscriptions[each] = await connection.subscribe(subject, queue=queue)
        await settle(connection)
        for subject in {each.partition(" ")[0] for each in subjects}:
            await spy.publish(subject, b"")
        await settle(spy)
        await settle(connection)
        return {each for each, subscription in subscriptions.items() if subscription.pending_msgs}


async def hold(site: Site, subjects: Iterable[str]) -> None:
    asked = list(dict.fromkeys(subjects))
    publish = [subject for subject in asked if not subject.startswith("+")]
    subscribe = [subject[1:] for subject in asked if subject.startswith("+")]
    for name, user in (USERS | THIEVES).items():
        allowed = {subject for subject in asked if pages.allows(user, subject)}
        listed = set(asked) if name in THIEVES else {subject for subject in asked if pages.lists(user, subject)}
        refusals: list[str] = []
        assert (name, await published(site, name, publish, refusals)) == (name, allowed & set(publish))
        expected = {subject[1:] for subject in allowed if subject.startswith("+")}
        assert (name, await heard(site, name, subscribe, refusals)) == (name, expected)
        # A thief meets no list: nothing but the account keeps it away.
        assert (name, len(refusals)) == (name, len(set(asked) - listed))


async def test_every_cell_of_the_matrix_holds_on_a_server(whole):
    await hold(whole, pages.OPERATIONS.values())


def test_the_matrix_has_what_is_allowed_and_refused_for_everybody():
    for user in USERS.values():
        cells = {pages.allows(user, subject) for subject in pages.OPERATIONS.values()}
        assert cells == {True, False}, user.name
    for subject in pages.OPERATIONS.values():
        for user in THIEVES.values():
            [role] = user.roles
            assert pages.allows(user, subject) <= pages.allows(USERS[role.value], subject)


@pytest.mark.long
async def test_every_subject_of_every_list_is_for_those_alone_who_have_it(whole):
    def example(pattern: str) -> str:
        subject, blank, queue = pattern.partition(" ")
        return re.sub(r"\*", "images", subject).replace(">", "a.b") + blank + queue

    subjects = []
    for user in USERS.values():
        allowed = user.permissions(Names())
        subjects += [example(pattern) for pattern in allowed.publish]
        subjects += ["+" + example(pattern) for pattern in allowed.subscribe if not pattern.startswith("_INBOX")]
    await hold(whole, subjects)
