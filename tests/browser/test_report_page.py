"""The report in a real browser, from a file, offline: nothing asked, nothing cut off, all readable."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_page import CONTRAST, LEAST_CONTRAST, OUTSIDE, VIEWS, visiting

from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_report import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser
    from reported import Reported

pytestmark = pytest.mark.browser

STATES = ("nothing", "two gates", "priced", "failed")
MANY_ALIKE = """
() => document.querySelectorAll("#claims tbody tr:nth-child(n+8)").forEach(row => row.remove())
"""

OVERLAPS = """
() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    const frame = svg.getBoundingClientRect();
    for (const [name, a] of texts) {
      if (a.left < frame.left - 2 || a.right > frame.right + 2) found.push("cut: " + name);
      for (const [other, b] of texts)
        if (a !== b && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          found.push(name + " / " + other);
    }
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def files(reported_route: Reported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page for each state."""
    documents: dict[str, Any] = dict(reported_route.steps)
    failed = copy.deepcopy(reported_route.full)
    failed["decision"] |= {"action": "bypass", "reason": "serving_failed"}
    failed["gates"]["serving"]["outcome"] = "FAIL"
    documents["failed"] = failed
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name in STATES:
        found[name] = folder / f"{name.replace(' ', '-')}.html"
        found[name].write_text(render_html(lay_out(documents[name])), encoding="utf-8")
    return found


@pytest.fixture(params=VIEWS, ids=str)
def visit(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Any]:
    with visiting(browser, request.param) as open_file:
        yield open_file


@pytest.mark.parametrize("state", STATES)
def test_it_opens_offline_asks_for_nothing_and_fits(
    files: dict[str, Path], visit: Any, state: str
) -> None:
    seen = visit(files[state])
    assert seen.messages == []
    assert seen.requests == [files[state].as_uri()]
    assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    if folder := os.environ.get("GATEKEEPER_SCREENSHOTS"):
        size = seen.page.viewport_size
        seen.page.screenshot(path=Path(folder) / f"{state}-{size['width']}.png", full_page=True)
    seen.page.evaluate(MANY_ALIKE)
    assert seen.page.evaluate(OUTSIDE) == []
    assert seen.page.evaluate(OVERLAPS) == []
    ratio, where = seen.page.evaluate(CONTRAST)
    assert ratio >= LEAST_CONTRAST, where


def test_a_figure_leads_to_its_claim(files: dict[str, Path], visit: Any) -> None:
    seen = visit(files["priced"])
    figure = seen.page.locator("#acceptance a.fig").first
    name = figure.get_attribute("title")
    figure.click()
    row = seen.page.locator("tr:target")
    assert name in row.inner_text()
    assert row.is_visible()
    box = row.bounding_box()
    assert -1 <= box["y"] < 900


def test_the_tables_keep_their_roles_when_they_are_stacked(
    files: dict[str, Path], visit: Any
) -> None:
    seen = visit(files["priced"])
    table = seen.page.get_by_role("table", name="Slice × load")
    assert table.get_by_role("columnheader").count() == 8
    assert table.get_by_role("rowheader").count() == 2
    assert seen.page.get_by_role("heading", level=1).count() == 1


def test_it_prints_in_black_on_white_with_nothing_hidden(
    files: dict[str, Path], visit: Any
) -> None:
    seen = visit(files["priced"])
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert not seen.page.locator("nav").is_visible()
    assert seen.page.locator("#claims tbody tr").last.is_visible()
    if seen.page.viewport_size["width"] > 1000:
        assert len(seen.page.pdf(format="A4")) > 10_000
