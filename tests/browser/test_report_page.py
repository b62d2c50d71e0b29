"""The report in a real browser, from a file, offline: nothing asked, nothing cut off, all readable."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_report import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page
    from reported import Reported

pytestmark = pytest.mark.browser

STATES = ("nothing", "two gates", "priced", "failed")
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text of usual size

CONTRAST = """
() => {
  const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = c => {
    const [r, g, b] = rgb(c).map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = e => {
    for (let n = e; n; n = n.parentElement) {
      const c = rgb(getComputedStyle(n).backgroundColor);
      if (c.length && (c.length < 4 || c[3] === 1)) return getComputedStyle(n).backgroundColor;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const worst = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("title") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const a = light(e.closest("svg") ? style.fill : style.color), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    worst.push([ratio, e.tagName + "." + e.getAttribute("class") + ": " + e.textContent.slice(0, 40)]);
  }
  return worst.sort((x, y) => x[0] - y[0])[0];
}
"""

OUTSIDE = """
() => [...document.querySelectorAll("body *")].filter(e => {
  if (e.closest(".scroll") || e.closest("thead")) return false;
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.tagName + "." + e.getAttribute("class") + " " + e.textContent.slice(0, 40)).slice(0, 5)
"""

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


@dataclass
class Visit:
    """An open page and what it did besides."""

    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


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


@pytest.fixture(params=[(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")], ids=str)
def view(request: pytest.FixtureRequest) -> tuple[int, str]:
    found: tuple[int, str] = request.param
    return found


@pytest.fixture
def visit(browser: Browser, view: tuple[int, str]) -> Iterator[Any]:
    width, scheme = view
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )

    def open_file(path: Path) -> Visit:
        found = Visit(context.new_page())
        found.page.on("console", lambda message: found.messages.append(message.text))
        found.page.on("pageerror", lambda error: found.messages.append(str(error)))
        found.page.on("request", lambda sent: found.requests.append(sent.url))
        found.page.goto(path.as_uri(), timeout=120_000)
        return found

    yield open_file
    context.close()


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
