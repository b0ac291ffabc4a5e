"""Rights that a reload of the server's configuration takes away and another one gives back; nobody is disconnected."""

from __future__ import annotations

import asyncio

import pytest

from gangline.cli.serving.health import reasons_against
from gangline.schemas.errors.base import GanglineError

from ..waiting import until
from .conftest import PASSWORD

pytestmark = pytest.mark.server

USERS = ("operator", "coordinator", "worker", "dispatcher", "gateway", "router", "producer")
CONFIG = "accounts {{ APP {{ jetstream: enabled, users: [\n{users}\n] }} }}\n"


def config(lost: str = "") -> str:
    limits = f", permissions {{ {lost} }}" if lost else ""
    users = (f"{{ user: {user}, password: {PASSWORD}{limits} }}" for user in USERS)
    return CONFIG.format(users="\n".join(users))


@pytest.mark.parametrize(
    "lost",
    [
        'subscribe { deny: [">"] }',
        pytest.param('publish { deny: [">"] }', marks=pytest.mark.long),
        pytest.param('publish { deny: ["$JS.API.>", "$KV.>"] }', marks=pytest.mark.long),
    ],
    ids=["deaf", "mute", "without storage"],
)
async def test_every_part_works_again_when_its_rights_are_back(site_of, lost):
    site = site_of(config())
    coordinator = await site.coordinator()
    worker = await site.worker()
    dispatcher, gateway = await site.dispatcher(), await site.gateway()
    services = {coordinator: coordinator._bus, **{each: each.bus for each in (worker, dispatcher, gateway)}}
    client, producer = await site.client("router"), await site.client("producer", gateway=True)

    def ready() -> bool:
        return not any(reasons_against([service], bus) for service, bus in services.items())

    async def works() -> bool:
        """A call, one through the gateway, a submitted task, and a gang, each on its own."""
        for step in (
            lambda: client.options(deadline_s=3.0).call("images.double", 2),
            lambda: producer.options(deadline_s=3.0).call("images.double", 2),
            lambda: once(client.submit("images.double", 2)),
            lambda: gang(client),
        ):
            try:
                async with asyncio.timeout(20):
                    assert await step() == 4
            except (GanglineError, TimeoutError) as error:
                print(f"{asyncio.get_running_loop().time():.1f} {error!r}")
                return False
        return True

    await until(works)
    assert ready()
    site.server.reload(config(lost))
    await until(lambda: not ready())
    site.server.reload(config())
    await until(ready)
    await until(works)


async def once(submitting) -> int:
    job = await submitting
    return await job.result(timeout_s=15.0)


async def gang(client) -> int:
    async with client.gang(pool="images", size=1, deadline_s=10.0) as gang:
        return 4 * gang.size
