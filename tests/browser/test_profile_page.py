"""The profile's page in a real browser, offline: the same demands as on a route's report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_page import CONTRAST, LEAST_CONTRAST, OUTSIDE, VIEWS, visiting
from span_builders import span, trace

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.what_if import Change, WhatIf
from gatekeeper.reports.profile_page import profile_html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

S = 10**9
WIDTHS = """
() => [...document.querySelectorAll(".timeline li")].map(e => [
  e.querySelector(".label").getBoundingClientRect().width,
  e.querySelector("svg").getBoundingClientRect().width,
])
"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long = "a name without a break that goes on: " + "x" * 90
    spans = [span("root", 0, 20 * S)]
    for i in range(4):
        step = span(f"step{i}", 5 * i * S, (5 * i + 5) * S, parent="root", name=f"step {i}")
        call = span(
            f"llm{i}",
            5 * i * S,
            (5 * i + 2) * S,
            parent=f"step{i}",
            kind="model",
            langfuse__completion_start_ns=(5 * i + 1) * S,
            name=long if i == 2 else "chat",
        )
        tool = span(f"tool{i}", (5 * i + 2) * S, (5 * i + 5) * S, parent=f"step{i}", kind="tool")
        spans += [step, call, tool]
    for i, kind in enumerate(("queue", "verification", "persistence", "human_wait")):
        spans.append(span(kind, i * S, (i + 1) * S, parent="root", kind=kind))
    at = "root"
    for i in range(12):  # deeper than labels are indented
        spans.append(span(f"deep{i}", i * S, 19 * S, parent=at))
        at = f"deep{i}"
    what = WhatIf(tuple(map(Change.parse, ("decode=2", "tool:tool*=1.5", "prefill=0.9"))))
    one = profile_task(trace(*spans), what_if=what)
    hidden = profile_task(trace(span("llm", 0, S, kind="model"), span("lost", 0, None)))
    path = tmp_path_factory.mktemp("pages") / "profile.html"
    every = [("runs/agent.json", one), ("runs/hidden.json", hidden)]
    path.write_text(profile_html(every, [("x.csv", "not a trace")]), encoding="utf-8")
    return path


@pytest.fixture(params=VIEWS, ids=str)
def seen(request: pytest.FixtureRequest, browser: Browser, page_file: Path) -> Iterator[Any]:
    with visiting(browser, request.param) as open_file:
        yield open_file(page_file)


def test_it_opens_offline_asks_for_nothing_fits_and_can_be_read(seen: Any, page_file: Path) -> None:
    assert seen.messages == []
    assert seen.requests == [page_file.as_uri()]
    assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    if folder := os.environ.get("GATEKEEPER_SCREENSHOTS"):
        size = seen.page.viewport_size
        name = f"profile-{size['width']}.png"
        seen.page.screenshot(path=Path(folder) / name, full_page=True)
    assert seen.page.evaluate(OUTSIDE) == []
    ratio, where = seen.page.evaluate(CONTRAST)
    assert ratio >= LEAST_CONTRAST, where


def test_every_bar_has_room_and_so_has_its_name(seen: Any) -> None:
    found = seen.page.evaluate(WIDTHS)
    assert len(found) > 20
    least = 300 if seen.page.viewport_size["width"] < 500 else 400
    assert all(bar >= least for _, bar in found)
    assert all(label >= 60 for label, _ in found)
    assert seen.page.get_by_role("heading", level=1).count() == 1
