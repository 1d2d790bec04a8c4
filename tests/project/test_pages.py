"""The project's pages: links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

from project_files import name, pages

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_links_resolve() -> None:
    broken = [f"{name(page)}: {target}" for page in pages() for target in broken_links(page)]
    assert not broken, "\n".join(broken)


def broken_links(page: Path) -> Iterator[str]:
    """Links of a page to files or headings that aren't there.  Links into the web are not followed."""
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        if not there.exists() or (anchor and anchor not in headings(there)):
            yield target


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as code hosts make them: lower case, punctuation dropped, spaces to hyphens."""
    titles = re.findall(r"^#+\s+(.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title`, here\n[a](#a-title-here) [b](#nowhere) [c](missing.md) [d](https://example.org/x)\n")
    assert list(broken_links(page)) == ["#nowhere", "missing.md"]
