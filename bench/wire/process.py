"""The parent's side of a child process; see child."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self

from ..schemas.errors.base import GanglineError

_START_S = 30.0
_ANSWER_S = 60.0
_END_S = 5.0


class ChildFailed(GanglineError):
    """A process of the bench failed to start, died, or could not do what it was asked."""


class Child:
    """A process that runs one module of this folder. Created by `start`; stopped by `end`, and by itself when its
    parent exits."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self.module = module
        self.pid = process.pid
        self._process = process

    @classmethod
    async def start(cls, module: str, *, environment: Mapping[str, str] | None = None, **arguments: object) -> Self:
        """Start `module` (a name within this package) with JSON arguments; returns when it is ready.

        Raises:
            ChildFailed: it is not ready within 30 s, or died.
        """
        command = (sys.executable, "-m", f"{__package__}.{module}", json.dumps(arguments))
        return await cls.run(command, name=module, environment=environment)

    @classmethod
    async def run(
        cls,
        command: tuple[str, ...],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        errors: IO[bytes] | None = None,
        patience_s: float = _START_S,
    ) -> Self:
        """Start any command that speaks as `child` does; returns when it is ready.

        Args:
            folder: its working folder; ours by default.
            errors: file for its stderr; ours by default.
            patience_s: how long it may take to be ready.

        Raises:
            ChildFailed: see start.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            cwd=folder,
            stderr=errors,
            limit=1 << 24,
            start_new_session=True,  # only we handle Ctrl-C: children exit when their stdin is closed
        )
        child = cls(name, process)
        try:
            await child._answer(patience_s)
        except BaseException:
            await child.end()
            raise
        return child

    async def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            ChildFailed: it failed, or died.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        return await self._answer(_ANSWER_S)

    async def _answer(self, patience_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(patience_s):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise ChildFailed(f"{self.module} did not answer within {patience_s:g} s") from error
        if not line:
            raise ChildFailed(f"{self.module} died: what it wrote to stderr says why")
        answer = json.loads(line)
        if "error" in answer:
            raise ChildFailed(f"{self.module}: {answer['error']}")
        return dict(answer)

    async def end(self) -> None:
        """Close its stdin, which ends it; kill it if it does not exit. Idempotent."""
        process = self._process
        if process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    def __repr__(self) -> str:
        return f"<Child {self.module} pid {self.pid}>"
