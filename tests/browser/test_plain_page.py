"""The plain page of an equivalence run in a real browser, from a file, offline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_page import CONTRAST, LEAST_CONTRAST, OUTSIDE, VIEWS, visiting
from plain_cases import case

from gatekeeper.reports.plain_verdict import lay_out
from gatekeeper.reports.route_html import render_html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

STATES = ("pass", "fail", "open", "servers fail", "servers open", "scored pass", "scored fail")

HIDDEN = """
() => [...document.querySelectorAll("h1, h2, dt, dd, p, li")].filter(e => {
  const box = e.getBoundingClientRect();
  return e.textContent.trim() && !e.closest("details:not([open])") && !(box.width > 0 && box.height > 0);
}).map(e => e.tagName + " " + e.textContent.slice(0, 40))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page for each verdict, as ``gate explain --html`` writes it."""
    folder = tmp_path_factory.mktemp("plain")
    found = {name: folder / f"{name.replace(' ', '-')}.html" for name in STATES}
    for name, path in found.items():
        path.write_text(render_html(lay_out(case(name))), encoding="utf-8")
    return found


@pytest.fixture(params=VIEWS, ids=str)
def visit(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Any]:
    with visiting(browser, request.param) as open_file:
        yield open_file


@pytest.mark.parametrize("state", STATES)
def test_it_asks_for_nothing_fits_and_can_be_read(
    files: dict[str, Path], visit: Any, state: str
) -> None:
    seen = visit(files[state])
    assert seen.messages == []
    assert seen.requests == [files[state].as_uri()]
    if folder := os.environ.get("GATEKEEPER_SCREENSHOTS"):
        width = seen.page.viewport_size["width"]
        seen.page.screenshot(path=Path(folder) / f"plain-{state}-{width}.png", full_page=True)
    assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    assert seen.page.evaluate(OUTSIDE) == []
    assert seen.page.evaluate(HIDDEN) == []
    ratio, where = seen.page.evaluate(CONTRAST)
    assert ratio >= LEAST_CONTRAST, where


def test_the_verdict_stands_first_and_the_sections_follow(
    files: dict[str, Path], visit: Any
) -> None:
    seen = visit(files["servers fail"])
    first = seen.page.locator("h1").first.bounding_box()
    assert first is not None
    assert first["y"] < 400
    assert "Failed" in seen.page.locator("body").inner_text()
    tops = [
        seen.page.locator(f"#{name}").bounding_box()["y"]
        for name in ("tested", "difference", "limits", "next")
    ]
    assert tops == sorted(tops)
