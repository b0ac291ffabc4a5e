"""`gangline top`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client


@click.command(short_help="Watch slots, and what waits and why, in the terminal.")
@click.argument("filter", required=False, default="")
@click.option("--plain", is_flag=True, help="Without keys: needs nothing but this package.")
@click.option("--once", is_flag=True, help="Print it once and exit.")
@json_option
@connection_options
def command(connection: ConnectionOptions, filter: str, plain: bool, once: bool, as_json: bool) -> None:
    """Watch every slot, who holds it, and what waits and why. FILTER: words in names, places, states, tasks or owners.

    Keys: / filters, enter or i inspects, w shows why something waits, d drains a worker and c ends a gang, both after
    asking for a reason. Needs the extra gangline[top]; without it, and with --plain, the same is shown without keys.

    If stdout is not a terminal, it is printed once. With --once --json, prints all rows as one JSON object.
    """
    from ...console.session import with_client

    if as_json and not once:
        raise click.UsageError("--json needs --once: the rows change all the time")

    async def show(client: Client) -> None:
        await _show(client, filter, plain=plain, once=once, as_json=as_json)

    with_client(connection, "gangline top", show)


async def _show(client: Client, words: str, *, plain: bool, once: bool, as_json: bool) -> None:
    import asyncio
    import importlib.util
    import sys

    from ....board.feed import TAKE_S, BoardFeed, following
    from ...console.output import console, print_json

    async with following(BoardFeed(client)) as feed:
        from ...top.screen import screen

        if once and as_json:
            print_json({table: list(rows.values()) for table, rows in feed.board.rows.items()})
            return
        if once or not sys.stdout.isatty():
            console().print(screen(feed.board, words))
            return
        if not plain and importlib.util.find_spec("textual") is not None:
            from ...top.interactive import Top

            await Top(client, feed, words).run_async()
            return
        from rich.live import Live

        with Live(console=console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(feed.board, words, most=max(5, live.console.height - 14)), refresh=True)
                await asyncio.sleep(TAKE_S)
