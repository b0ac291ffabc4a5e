"""A headless Chromium, driven by its DevTools protocol over a pipe: it needs no driver and no port."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

PATIENCE_S: Final = 60.0
"""A wait that takes longer counts as a hang."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER: Final = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS: Final = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
LOOK_S: Final = 0.05
# It reads commands from descriptor 3 and answers on descriptor 4.
EXEC: Final = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(given), fcntl.F_DUPFD, 10) for given in sys.argv[1:3])
os.dup2(commands, 3), os.dup2(answers, 4), os.close(commands), os.close(answers)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        """Exceptions, what scripts wrote to the console as an error, refused requests, and breaches of the content
        security policy."""

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.send(method, params, self._session)

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """The value of an expression, or of a promise."""
        answer = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        guarded = f"(() => {{ try {{ return Boolean({script}) }} catch (e) {{ return false }} }})()"
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self.run(guarded):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            shown = await self.text()
            raise AssertionError(f"never true: {script}\nerrors: {self.errors}\nthe page:\n{shown[:2000]}") from None

    async def until_text(self, *texts: str, within: str = "main") -> None:
        """Wait until a part of the page has all these texts at once."""
        part = f"document.querySelector({json.dumps(within)})"
        await self.until(f"{json.dumps(texts)}.every((text) => {part}.innerText.includes(text))")

    async def text(self, of: str = "body") -> str:
        return str(await self.run(f"document.querySelector({json.dumps(of)}).innerText"))

    async def go(self, path: str) -> None:
        """To another page of the console."""
        await self.run(f"location.hash = {json.dumps('#/' + path)}")

    async def enter(self, into: str, text: str) -> None:
        """Give a field a value, as if it were typed or chosen; waits for the field."""
        await self.until(
            f"(() => {{ const field = document.querySelector({json.dumps(into)}); field.value = {json.dumps(text)};"
            " for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, { bubbles: true }));"
            " return true; })()"
        )

    async def click(self, text: str, within: str = "body") -> None:
        """The first button that is labelled so; waits for it."""
        buttons = f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
        found = f"{buttons}.find((button) => button.innerText === {json.dumps(text)})"
        # In one expression: a page may be drawn again between two.
        await self.until(f"({found}.click(), true)")

    async def shot(self, path: Path) -> None:
        """A picture of what is in view, as PNG or WebP, by the file's suffix."""
        how = {"format": "webp", "quality": 75} if path.suffix == ".webp" else {"format": "png"}
        picture = await self.send("Page.captureScreenshot", **how)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(picture["data"]))


class Browser:
    """Sends commands and takes answers and events."""

    def __init__(self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        self._writer = writer
        self._reader = reader
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def send(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._waiting[number] = found = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_S):
            return await found

    async def page(self) -> Page:
        target = (await self.send("Target.createTarget", {"url": "about:blank"}))["targetId"]
        session = (await self.send("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
        self._pages[session] = page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.send(f"{domain}.enable")
        return page

    async def read(self) -> None:
        """Follow its messages until it ends."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                self._take(json.loads((await self._reader.readuntil(b"\0"))[:-1]))
        for found in self._waiting.values():
            if not found.done():
                found.set_exception(RuntimeError("the browser has ended"))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            found = self._waiting.pop(message["id"])
            if found.done():
                return
            if "error" in message:
                found.set_exception(RuntimeError(str(message["error"])))
            else:
                found.set_result(message["result"])
            return
        page, params = self._pages.get(message.get("sessionId", "")), message.get("params", {})
        if page is None:
            return
        if message["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            page.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif message["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            page.errors.append(str([each.get("value") or each.get("description") for each in params["args"]]))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            page.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser without any history."""
    assert BROWSER is not None, "install chromium"
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-c", EXEC, str(to_browser), str(to_us)),
            *(BROWSER, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"),
            pass_fds=(to_browser, to_us),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        reader = asyncio.StreamReader(limit=256 * 1024 * 1024)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_browser, "rb", 0)
        )
        writing, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(from_us, "wb", 0))
        browser = Browser(asyncio.StreamWriter(writing, protocol, None, loop), reader)
        following = asyncio.create_task(browser.read())
        try:
            yield browser
        finally:
            following.cancel()
            await asyncio.wait((following,))
            writing.close()
            reading.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
