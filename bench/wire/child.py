"""A child process of the bench: reads one JSON request per line from stdin, and answers each with one line on
stdout."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

Handler = Callable[..., Awaitable[Any]]

PAYLOAD = b"x" * 100
"""The body of each request and answer."""
LARGE = b"x" * 100_000
"""The body of a large one."""
ITEMS = 200
"""How many of them a stream yields."""
TEXT = PAYLOAD.decode()
JSON_BODY = json.dumps([TEXT]).encode()
"""A request to the gateway, and to the raw echo for comparison."""


async def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests `{"do": NAME, ...arguments}` until stdin is closed. An error is answered as `{"error": text}`."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    answers.write(json.dumps({"ready": os.getpid()}) + "\n")
    while line := await reader.readline():
        request = json.loads(line)
        try:
            answer = await handlers[request.pop("do")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def main(life: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Run a child: its arguments are one JSON object on the command line."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(life(**json.loads(sys.argv[1])))
