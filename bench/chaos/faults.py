"""The kinds of faults. Each is drawn from the seed, takes effect for some seconds, and is over when it returns."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from bench.chaos.client import OVERLOADS
from bench.chaos.proxy import Link
from bench.chaos.system import NAMES, ROLES, SERVERS, WORKERS, System
from gangline.bus.port.bus import Storage
from gangline.testing.kit.processes import holds_within

Act = Callable[[], Awaitable[None]]
Fault = Callable[[System, Random], tuple[str, Act]]
"""Draws the details of a fault and describes it in a few words."""

_SERVE_S: Final = 40.0
_LEAVE_S: Final = 60.0


def _nothing(system: System, draw: Random) -> tuple[str, Act]:
    """The baseline for recovery times: even without a fault, each kind of request takes some time."""

    async def act() -> None:
        return

    return "nothing happens", act


# -- processes ------------------------------------------------------------------------------------------------------


def _kill(role: str) -> Fault:
    def drawn(system: System, draw: Random) -> tuple[str, Act]:
        names = ROLES[role] if draw.random() < 0.2 else (draw.choice(ROLES[role]),)

        async def act() -> None:
            children = [child for name in names if (child := system.children.get(name)) is not None]
            for name in names:
                system.signal(name, signal.SIGKILL)
            for child in children:
                await child.ended()

        return f"{', '.join(names)} killed, and started again", act

    return drawn


def _freeze(role: str) -> Fault:
    def drawn(system: System, draw: Random) -> tuple[str, Act]:
        name, seconds = draw.choice(ROLES[role]), draw.uniform(1.5, 7.0)

        async def act() -> None:
            with system.troubled("frozen", [name]):
                system.signal(name, signal.SIGSTOP)
                await asyncio.sleep(seconds)
                system.signal(name, signal.SIGCONT)

        return f"{name} is frozen for {seconds:.1f} s", act

    return drawn


def _twins(system: System, draw: Random) -> tuple[str, Act]:
    name, more_s, frozen = draw.choice(WORKERS), draw.uniform(0.0, 3.0), draw.random() < 0.7

    async def act() -> None:
        first = system.children.get(name)
        if first is None:
            return
        system.unwanted(name)
        links = system.links(name)
        with system.troubled("frozen" if frozen else "cut off", [name]):
            if frozen:
                system.signal(name, signal.SIGSTOP)
            else:
                for link in links:
                    link.silence()
            await asyncio.sleep(3.5)
            second = await system.begin(f"{name}'", wanted=False)
            await _serves(system, second.life.pid)
            await asyncio.sleep(more_s)
            system.signal(name, signal.SIGCONT)
            system.proxy.heal(links)
        ends = [asyncio.ensure_future(each.ended()) for each in (first, second)]
        await asyncio.wait(ends, timeout=_LEAVE_S, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if first.exit_code is not None:
            system.succeeds(name)
        elif second.exit_code is None:
            system.exits.append(f"two processes of {name} both serve {_LEAVE_S:g} s after the first one woke")
            system.signal(f"{name}'", signal.SIGKILL)
            await second.ended()
        system.want(name)

    how = "frozen" if frozen else "cut off"
    return f"{name} is {how} until a second process of its id serves, and is back {more_s:.1f} s later", act


async def _serves(system: System, pid: int) -> None:
    """Wait until that process has run a task."""
    if not await holds_within(_SERVE_S, (system.folder / f"task-{pid}.jsonl").exists, pause_s=0.1):
        system.exits.append(f"the second process of a frozen worker's id ran nothing in {_SERVE_S:g} s")


def _rolling(system: System, draw: Random) -> tuple[str, Act]:
    role = draw.choice(("worker", "dispatcher", "coordinator"))
    names = list(ROLES[role])
    draw.shuffle(names)

    async def act() -> None:
        for name in names[:3]:
            await system.restarted(name)

    return f"every {role} is restarted in turn: {', '.join(names[:3])}", act


def _restart_leader(system: System, draw: Random) -> tuple[str, Act]:
    async def act() -> None:
        name = await system.leading_coordinator()
        system.signal(name, signal.SIGTERM)
        await system.ended(name)

    return "the leading coordinator is restarted", act


# -- links ----------------------------------------------------------------------------------------------------------


def _silence(link: Link, near: str, far: str, way: str) -> None:
    link.silence(*{"both ways": (near, far), "out": (near,), "in": (far,)}[way])


def _partition(role: str) -> Fault:
    def drawn(system: System, draw: Random) -> tuple[str, Act]:
        name, seconds = draw.choice(ROLES[role]), draw.uniform(1.0, 8.0)
        way = draw.choice(("both ways", "out", "in"))

        async def act() -> None:
            with system.troubled("cut off", [name]):
                links = system.links(name)
                for link in links:
                    server = link.b if link.b in SERVERS else link.a
                    _silence(link, link.a if server == link.b else link.b, server, way)
                await asyncio.sleep(seconds)
                system.proxy.heal(links)

        return f"{name} is cut off from all servers, {way}, for {seconds:.1f} s", act

    return drawn


def _cut(system: System, draw: Random) -> tuple[str, Act]:
    name, seconds = draw.choice(NAMES), draw.uniform(0.2, 4.0)

    async def act() -> None:
        links = system.links(name)
        with system.troubled("cut off", [name]):
            for link in links:
                link.sever()
            await asyncio.sleep(seconds)
            system.proxy.heal(links)

    return f"the connection of {name} is reset, and refused for {seconds:.1f} s", act


def _delay(system: System, draw: Random) -> tuple[str, Act]:
    name, delay_s, seconds = draw.choice((*NAMES, *SERVERS)), draw.uniform(0.02, 0.3), draw.uniform(3.0, 6.0)

    async def act() -> None:
        links = system.links(name)
        for link in links:
            link.slow(delay_s)
        await asyncio.sleep(seconds)
        system.proxy.heal(links)

    return f"all that {name} sends and gets is {delay_s * 1000:.0f} ms late for {seconds:.1f} s", act


def _jitter(system: System, draw: Random) -> tuple[str, Act]:
    own, seconds = Random(draw.random()), draw.uniform(4.0, 12.0)

    async def act() -> None:
        links = [link for name in NAMES for link in system.links(name)]
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            for link in links:
                link.slow(own.uniform(0.0005, 0.05))
            await asyncio.sleep(0.2)
        system.proxy.heal(links)

    return f"every process is 0 to 50 ms away from each server, and that changes, for {seconds:.1f} s", act


def _server_partition(system: System, draw: Random) -> tuple[str, Act]:
    name, seconds = draw.choice(SERVERS), draw.uniform(3.0, 12.0)
    way = draw.choice(("both ways", "out", "in"))
    whom = draw.choice(("all", "all", "the other servers", "the other servers", "one other server"))
    other_server = draw.choice([other for other in SERVERS if other != name])

    async def act() -> None:
        links = system.links(name)
        if whom == "one other server":
            links = [system.proxy.between(name, other_server)]
        with system.troubled("cut off", system.connected(name)):
            for link in links:
                other = link.b if link.a == name else link.a
                if whom == "all" or other in SERVERS:
                    _silence(link, name, other, way)
            await asyncio.sleep(seconds)
            system.proxy.heal(links)

    return f"{name} is cut off from {whom}, {way}, for {seconds:.1f} s", act


# -- servers --------------------------------------------------------------------------------------------------------


def _kill_server(system: System, draw: Random) -> tuple[str, Act]:
    name, seconds = draw.choice(SERVERS), draw.uniform(0.2, 8.0)
    wiped = draw.random() < 0.4

    async def act() -> None:
        await asyncio.to_thread(system.servers[name].kill)
        await asyncio.sleep(seconds)
        if wiped:
            await system.wipe(name)
        await system.servers[name].astart()

    return f"{name} is killed, {'loses its disk, ' if wiped else ''}and is back after {seconds:.1f} s", act


def _restart_servers(system: System, draw: Random) -> tuple[str, Act]:
    """A clean shutdown. Killing all at once would be a power failure: a server acknowledges before the data is on
    disk."""
    at_once = draw.random() < 0.4
    names = list(SERVERS)
    draw.shuffle(names)

    async def act() -> None:
        servers = [system.servers[name] for name in names]
        if at_once:
            with system.troubled("cut off", NAMES):
                await asyncio.gather(*(asyncio.to_thread(server.restart) for server in servers))
            return
        for server in servers:
            with system.troubled("cut off", system.connected(names[servers.index(server)])):
                await asyncio.to_thread(server.restart)
            await system.storage_is_whole(_SERVE_S)

    return f"all servers are restarted, {'at once' if at_once else 'in turn: ' + ', '.join(names)}", act


def _servers_away(system: System, draw: Random) -> tuple[str, Act]:
    seconds = 0.2 * 150 ** draw.random()  # 0.2 to 30

    async def act() -> None:
        with system.troubled("cut off", NAMES):
            await asyncio.gather(
                *(asyncio.to_thread(server.restart, away_s=seconds) for server in system.servers.values())
            )

    return f"all servers are away for {seconds:.1f} s, and all processes live; the ledger is {_stored(system)}", act


def _stored(system: System) -> str:
    return "in memory, and lost" if system.ledger.storage is Storage.MEMORY else "on disk"


_RIGHTS: Final = {
    "to hear anything": 'subscribe { deny: [">"] }',
    "to send anything": 'publish { deny: [">"] }',
    "to reach storage": 'publish { deny: ["$JS.API.>", "$KV.>"] }',
}


def _rights(system: System, draw: Random) -> tuple[str, Act]:
    role, what, seconds = draw.choice(list(ROLES)), draw.choice(list(_RIGHTS)), draw.uniform(1.0, 8.0)

    async def act() -> None:
        with system.troubled("cut off", ROLES[role]):
            async with system.without_rights(role, _RIGHTS[what]):
                await asyncio.sleep(seconds)

    return f"every {role} loses the right {what} for {seconds:.1f} s", act


def _full_store(system: System, draw: Random) -> tuple[str, Act]:
    names = system.names
    stream = draw.choice((names.tasks_stream, f"KV_{names.results_bucket}", f"KV_{names.ledger_bucket}"))
    seconds = draw.uniform(2.0, 8.0)

    async def act() -> None:
        async with system.full(stream):
            await asyncio.sleep(seconds)

    return f"{stream} is full for {seconds:.1f} s", act


def _overload(system: System, draw: Random) -> tuple[str, Act]:
    name, number = draw.choice(ROLES["client"]), draw.choice(list(OVERLOADS))

    async def act() -> None:
        system.signal(name, number)

    return f"{name} makes {OVERLOADS[number]} times as many calls at once as there are slots", act


def _freeze_server(system: System, draw: Random) -> tuple[str, Act]:
    name, seconds = draw.choice(SERVERS), draw.uniform(2.0, 8.0)

    async def act() -> None:
        with system.troubled("cut off", system.connected(name)):
            system.servers[name].freeze()
            await asyncio.sleep(seconds)
            system.servers[name].thaw()

    return f"{name} is frozen for {seconds:.1f} s", act


def _two(system: System, draw: Random) -> tuple[str, Act]:
    """At most one of the two is a server fault."""
    kinds = draw.sample(_TOGETHER, 2)
    (one, act_one), (other, act_other) = (FAULTS[kind](system, draw) for kind in kinds)

    async def act() -> None:
        await asyncio.gather(act_one(), act_other())

    return f"{one}; and {other}", act


FAULTS: Final[dict[str, Fault]] = {
    "nothing": _nothing,
    "kill worker": _kill("worker"),
    "kill dispatcher": _kill("dispatcher"),
    "kill coordinator": _kill("coordinator"),
    "kill client": _kill("client"),
    "freeze worker": _freeze("worker"),
    "freeze dispatcher": _freeze("dispatcher"),
    "freeze coordinator": _freeze("coordinator"),
    "freeze client": _freeze("client"),
    "twins": _twins,
    "rolling restart": _rolling,
    "restart leader": _restart_leader,
    "partition worker": _partition("worker"),
    "partition dispatcher": _partition("dispatcher"),
    "partition coordinator": _partition("coordinator"),
    "partition client": _partition("client"),
    "cut process": _cut,
    "delay": _delay,
    "partition server": _server_partition,
    "kill server": _kill_server,
    "freeze server": _freeze_server,
    "restart servers": _restart_servers,
    "jitter": _jitter,
    "servers away": _servers_away,
    "rights": _rights,
    "full store": _full_store,
    "overload": _overload,
    "two at once": _two,
}
_TOGETHER: Final = tuple(f"{what} {role}" for what in ("kill", "freeze", "partition") for role in ROLES) + (
    "twins",
    "restart leader",
    "cut process",
    "delay",
    "freeze server",
)
SERVER_FAULTS: Final = frozenset(
    {
        *("partition server", "kill server", "freeze server", "restart servers", "servers away", "two at once"),
        *("rights", "full store"),
    }
)
"""Before one of these, and before the next fault after it, all replicas of all streams must be up to date:
replication does not survive two servers without the newest entries."""


def order(seed: int, only: tuple[str, ...] = ()) -> list[str]:
    """The kinds in the order in which a seed uses them: each occurs once before any occurs twice."""
    kinds = list(only or FAULTS)
    Random(f"order {seed}").shuffle(kinds)
    return kinds
