from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from reported import Reported

Run = Callable[..., Any]


@pytest.fixture
def reader(gatekeeper: Run, reported_route: Reported) -> Run:
    def run(*arguments: object) -> Any:
        server = reported_route.server
        return gatekeeper(*arguments, URL=server.url, TOKEN=server.tokens["reader"])

    return run


def test_report_on_the_terminal_as_page_as_markdown_and_as_json(
    reader: Run, tmp_path: Path
) -> None:
    printed = reader("report", "prose")
    assert printed.status == 0
    assert "prose  Enable: every mandatory gate passed" in printed.out
    page, notes = tmp_path / "report.html", tmp_path / "report.md"
    written = reader("report", "prose", "--html", page, "--markdown", notes)
    assert written.status == 0
    assert written.out.splitlines() == [f"written: {page}", f"written: {notes}"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert notes.read_text(encoding="utf-8").startswith("# prose: Enable")
    document = reader("report", "prose", "--json", "--html", page).json
    assert document["decision"]["action"] == "enable"
    assert len(document["claims"]) > 300


def test_errors_of_report(reader: Run, tmp_path: Path) -> None:
    unknown = reader("report", "nowhere")
    assert (unknown.status, "route=nowhere" in unknown.err) == (2, True)
    unwritable = reader("report", "prose", "--html", tmp_path / "missing" / "x.html")
    assert unwritable.status == 2
    assert "name a file that can be written" in unwritable.err


def test_an_override_set_by_the_command_line_is_in_the_report(
    gatekeeper: Run, live_server: Any, tmp_path: Path
) -> None:
    from reported import set_up

    set_up(live_server)

    def run(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["admin"])

    reason = "incident 7 \x1b[31mred"
    options = ("--reason", reason, "--ttl", "900")
    assert run("override", "set", "prose", "bypass", *options).status == 0
    printed = run("report", "prose")
    assert "Bypass: set by hand" in printed.out
    assert r"incident 7 \x1b[31mred" in printed.out
    assert "\x1b" not in printed.out
    decided = run("decide", "prose")
    assert (decided.status, "\x1b" in decided.out) == (1, False)
    (kept,) = run("report", "prose", "--json").json["overrides"]
    assert (kept["reason"], kept["action"]) == (reason, "bypass")
    assert run("override", "clear", "prose").status == 0
    assert "cleared" in run("report", "prose").out
