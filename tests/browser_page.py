"""What is asked of every page in a real browser: it fits, it can be read, it asks for nothing."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

VIEWS = [(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")]

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


@dataclass
class Visit:
    """An open page and what it did besides."""

    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def visiting(browser: Browser, view: tuple[int, str]) -> Iterator[Callable[[Path], Visit]]:
    """A way to open files in a window of a width and a colour scheme, without a network."""
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
