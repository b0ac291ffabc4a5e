"""Takes the picture of the console in docs/how-to/console.md, with a headless Chromium:

gangline console          # on a system with something to see, such as `gangline demo --console`
python -m bench.console.picture 'http://127.0.0.1:4280/?token=...' docs/how-to/console.webp
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from .browser import chromium


async def main(url: str, picture: Path) -> None:
    async with chromium() as browser:
        page = await browser.page()
        await page.size(1280, 720)
        await page.open(url)
        await page.until("document.querySelector('.live').innerText.includes('live')")
        await asyncio.sleep(20)  # until there is something to see in the charts
        await page.shot(picture)
        if page.errors:
            raise SystemExit(f"the page has errors: {page.errors}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
