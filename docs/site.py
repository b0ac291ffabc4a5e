"""Build the documentation site: `make site`, or `python docs/site.py`.

The pages of docs/ link to files of the project that are not pages (compose.yaml, CONTRIBUTING.md, ...), which a site
generator cannot follow. So the pages are first copied to build/site/pages, with those files beside them; Zensical then
builds build/site/html from mkdocs.yml; at last every link and every anchor of the result is checked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build" / "site"
PAGES = BUILD / "pages"
HTML = BUILD / "html"

_LINK = re.compile(r"(?<!!)\[(?P<label>(?:[^\]\\]|\\.)*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def stage(folder: Path) -> list[Path]:
    """Copy the pages of docs/, and the files outside of it that they link to, into an empty folder. Returns the staged
    pages."""
    todo = [path for path in sorted(DOCS.rglob("*")) if path.is_file() and path.suffix not in (".py", ".pyc", ".txt")]
    staged: dict[Path, Path] = {}
    while todo:
        source = todo.pop()
        if source in staged:
            continue
        target = staged[source] = folder / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".md":
            shutil.copyfile(source, target)
            continue
        text, linked = rewrite(source)
        target.write_text(text)
        todo += linked
    return [target for target in staged.values() if target.suffix == ".md"]


def place(source: Path) -> Path:
    """Where a file of the project stands on the site, relative to its root."""
    if source.is_relative_to(DOCS):
        return source.relative_to(DOCS)
    relative = source.relative_to(ROOT)
    if source.suffix == ".md":
        name = relative.name.lower().removesuffix(".md").replace("readme", "index")
        return Path("project") / relative.parent / f"{name}.md"
    return Path("files") / relative


def rewrite(page: Path) -> tuple[str, list[Path]]:
    """The text of a page with links that hold on the site, and the files outside of docs/ that it links to."""
    linked: list[Path] = []

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, hash_, anchor = target.partition("#")
        aim = (page.parent / path).resolve()
        if aim.is_dir():  # a site has no folders to look into
            readme = aim / "README.md"
            if not readme.exists():
                return match["label"]
            aim = readme
        if not aim.is_relative_to(DOCS):
            linked.append(aim)
        return f"[{match['label']}]({relative_to(place(page).parent, place(aim))}{hash_}{anchor})"

    parts: list[str] = []
    at = 0
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        # Only tests read what follows the language, and the generator would not know the block for code.
        parts += [_LINK.sub(link, text[at : fence.start()]), fence[0].replace("```python notest", "```python", 1)]
        at = fence.end()
    return "".join([*parts, _LINK.sub(link, text[at:])]), linked


def relative_to(folder: Path, target: Path) -> str:
    """`target` as seen from `folder`, both relative to the site's root."""
    common = 0
    for ours, theirs in zip(folder.parts, target.parts, strict=False):
        if ours != theirs:
            break
        common += 1
    return "/".join([*[".."] * (len(folder.parts) - common), *target.parts[common:]])


class _Page(HTMLParser):
    """The links of a page, and what they can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.links.append(value)


def broken_links() -> tuple[list[str], int]:
    """Links of the built site that lead nowhere, and how many were checked."""
    pages = {path: _Page(path.read_text()) for path in sorted(HTML.rglob("*.html"))}
    broken: list[str] = []
    checked = 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are made for the site's address
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if aim.is_dir():
                aim /= "index.html"
            if not aim.is_file() or (aim in pages and unquote(parts.fragment) not in pages[aim].anchors):
                broken.append(f"{path.relative_to(HTML)}: {link}")
    return broken, checked


def main() -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    pages = stage(PAGES)
    zensical = Path(sys.executable).with_name("zensical")
    build = [zensical, "build", "--clean", "--strict", "--config-file", ROOT / "mkdocs.yml"]
    subprocess.run(build, check=True, cwd=ROOT)
    broken, checked = broken_links()
    for each in broken:
        print(f"broken link in {each}", file=sys.stderr)
    print(f"{len(pages)} pages, {checked} links checked, {len(broken)} broken: {HTML / 'index.html'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
