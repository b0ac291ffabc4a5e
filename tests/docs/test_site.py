"""The documentation site: its pages, their order, and links out of docs/. `make site` checks what is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import gangline
import gangline.testing

from ..support.scripts import script

ROOT = Path(__file__).resolve().parents[2]


site = script("site.py")


def test_every_page_has_a_place_in_the_navigation(tmp_path):
    staged = {str(page.relative_to(tmp_path)) for page in site.stage(tmp_path)}
    in_order = set(re.findall(r"[\w/.-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert in_order - staged == set()
    # Reached by a link from the page that speaks of them.
    assert {page for page in staged - in_order if not page.startswith("project/examples/")} == set()


def test_links_to_files_outside_of_the_pages_lead_to_copies_of_them(tmp_path):
    site.stage(tmp_path)
    permissions = (tmp_path / "how-to" / "permissions.md").read_text()
    assert "(../files/deploy/roles.conf)" in permissions
    assert (tmp_path / "files" / "deploy" / "roles.conf").read_text() == (ROOT / "deploy" / "roles.conf").read_text()
    assert "(project/contributing.md)" in (tmp_path / "index.md").read_text()


def test_links_in_code_samples_stay_as_they_are(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python notest\n[a](b.md)\n```\n[c](https://d)\n")
    assert site.rewrite(page) == ("```python\n[a](b.md)\n```\n[c](https://d)\n", [])


def test_every_public_name_is_on_exactly_one_page_of_the_python_api():
    pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    documented = [name for page in pages for name in re.findall(r"^::: gangline\.([\w.]+)$", page.read_text(), re.M)]
    public = [*gangline.__all__, *(f"testing.{name}" for name in gangline.testing.__all__)]
    assert sorted(documented) == sorted([*public, "GanglineError"] if "GanglineError" not in public else public)


def test_the_index_of_the_python_api_names_every_public_name():
    index = (ROOT / "docs" / "reference" / "api" / "index.md").read_text()
    assert [name for name in gangline.__all__ if f"`{name}`" not in index and name != "errors"] == []


def docstrings() -> Iterator[tuple[str, str]]:
    """Of all public names, and of the public members of classes."""
    for module in (gangline, gangline.testing):
        for name in module.__all__:
            found = getattr(module, name)
            yield f"{module.__name__}.{name}", inspect.getdoc(found) or ""
            if inspect.isclass(found):
                for member, value in inspect.getmembers(found):
                    if not member.startswith("_") or member == "__init__":
                        yield f"{module.__name__}.{name}.{member}", inspect.getdoc(value) or ""


def test_the_generator_of_the_site_can_read_every_public_docstring():
    arguments = re.compile(r"^Args:\n((?:    .*\n|\n)*)", re.MULTILINE)
    for where, text in docstrings():
        assert not re.search(r"::$", text, re.MULTILINE), f"{where}: write an example as a block of ```python"
        for block in arguments.findall(f"{text}\n"):
            assert not re.search(r"^    \w+, \w", block, re.MULTILINE), f"{where}: one line for each argument"
        assert not re.search(r"^    \w[\w, ]*\.?$", raises(text), re.MULTILINE), (
            f"{where}: say when each error is raised"
        )


def raises(text: str) -> str:
    found = re.search(r"^Raises[^\n]*:\n((?:    [^\n]*\n|\n)*)", f"{text}\n", re.MULTILINE)
    return "" if found is None else found[1]
