"""The demo on a terminal: a table that fills in live, and plain lines where there is none."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gatekeeper.cli.demo.agent_report import lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["Screen", "cell", "decision_table"]

_LOG_WIDTH = 132
_STYLE = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "ERROR": "red"}


class Screen:
    """Shows notes and the table; without a terminal, one line for each thing that changed."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(highlight=False, stderr=quiet)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, stderr=quiet, width=_LOG_WIDTH)
        self._live: Live | None = None
        self._seen: dict[tuple[str, str], str] = {}

    def __enter__(self) -> Self:
        """Nothing is drawn before the first note."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def note(self, line: str) -> None:
        """Say what begins now."""
        self._console.print(f"[dim]·[/dim] {line}", soft_wrap=True)

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Redraw the table, or print the cells that changed."""
        if self._console.is_terminal:
            if self._live is None:
                self._console.print()
                self._live = Live(console=self._console, refresh_per_second=4, transient=True)
                self._live.start()
            self._live.update(Group(decision_table(rows), Text(_overall(rows), style="dim")))
            return
        for row in rows:
            for gate, run in row["runs"].items():
                if run is None:
                    continue
                phase = _phase(run)
                key = (row["route"].name, gate)
                if self._seen.get(key) != phase:
                    self._seen[key] = phase
                    self._console.print(
                        f"{row['route'].name} {gate}: {phase} ({_overall(rows)})", soft_wrap=True
                    )

    def pause(self) -> None:
        """Take the live table away: what follows is told in lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def finish(
        self,
        rows: Sequence[Mapping[str, Any]],
        policy: Mapping[str, Any],
        *,
        agent: Mapping[str, Any] | None,
        reports: Mapping[str, Path],
    ) -> None:
        """Print the final table, a sentence per route, the agent's figures and the policy."""
        self.pause()
        say = self._console.print
        say()
        say(decision_table(rows))
        for row in rows:
            say(
                f"  [bold]{row['route'].name}[/bold] ({row['route'].about}): "
                f"{row['decision']['explanation']}"
            )
            say(f"    report: {reports[row['route'].name]}", soft_wrap=True)
        if agent is not None:
            say()
            say(f"What an agent of [bold]{agent['route']}[/bold] saw:")
            for line in lines(agent):
                say(f"  {line}")
        document = policy["document"]
        say()
        say(
            f"Policy [bold]{policy['name']}[/bold] {policy['digest'][:12]}: {document['description']}"
        )
        say(f"  mandatory gates: {', '.join(document['mandatory_gates'])}; {_budget(document)}")

    def next_steps(self, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Print what to do next: titles with the commands to type."""
        say = self._console.print
        say()
        say("[bold]Next[/bold]")
        for title, commands in steps:
            say(f"  {title}", soft_wrap=True)
            for command in commands:
                say(f"      {command}", soft_wrap=True, markup=False)


def decision_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Draw a row per route: its gates, the action and window, the measured speed-up, value, reason."""
    table = Table(
        title="Enable or bypass?",
        title_justify="left",
        expand=False,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("route", "artifact"):
        table.add_column(name, no_wrap=True)
    gates = list(rows[0]["runs"]) if rows else []
    for gate in gates:
        table.add_column(gate, no_wrap=True, min_width=len("INCONCLUSIVE"))
    for name, width in (("action", 6), ("γ", 1), ("speed-up", 11), ("value per task", 15)):
        table.add_column(name, min_width=width)
    for name, width in (("reason", 12), ("evidence", 8)):
        table.add_column(name, min_width=width)
    for row in rows:
        decision = row["decision"]
        table.add_row(
            row["route"].name,
            row["route"].artifact,
            *(cell(row["runs"][gate]) for gate in gates),
            Text(decision["action"], style="bold green" if decision["action"] == "enable" else ""),
            _windows(decision),
            _speedup(row["runs"].get("serving")),
            _value(row),
            decision["reason"].replace("_", " ")
            if row["done"]
            else Text("waiting for its gates", style="dim"),
            _evidence(row),
        )
    return table


def cell(run: Mapping[str, Any] | None) -> Text:
    """Show one gate's state: its outcome, how far it is, or – where its run would change nothing."""
    if run is None:
        return Text("–", style="dim")
    if run["outcome"]:
        return Text(run["outcome"], style=_STYLE.get(run["outcome"], ""))
    return Text(_phase(run), style="dim")


def _phase(run: Mapping[str, Any]) -> str:
    if run["outcome"]:
        return str(run["outcome"])
    progress = run["progress"]
    if run["state"] == "running" and progress:
        share = progress["done"] / progress["total"] if progress.get("total") else 0.0
        return f"{progress['phase']} {10 * int(10 * share)} %"
    return str(run["state"])


def _windows(decision: Mapping[str, Any]) -> str:
    """Show gamma as the lease gives it, by rising concurrency; one figure where all agree."""
    by_load = {int(c): g for c, g in (decision.get("gamma_by_concurrency") or {}).items() if g}
    if len(set(by_load.values())) > 1:
        return ", ".join(str(by_load[load]) for load in sorted(by_load))
    return str(decision["gamma"] or "–")


def _speedup(run: Mapping[str, Any] | None) -> str:
    """Show the confirmed ratio at the lowest concurrency, with its interval."""
    regions = ((run or {}).get("result") or {}).get("summary", {}).get("regions") or []
    measured = [r for r in regions if r.get("speedup")]
    if not measured:
        return "–"
    best = max(measured, key=lambda r: r["speedup"]["low"])
    s = best["speedup"]
    return f"{s['ratio']:.2f}× at {best['concurrency']}\n({s['low']:.2f}–{s['high']:.2f})"


def _value(row: Mapping[str, Any]) -> str:
    """Show the incremental value per task with its interval."""
    total = (row.get("value") or {}).get("total")
    if total is None:
        return "unknown" if row.get("value") else "–"
    return f"{total['per_task']:.2g} {total['currency']}\n[{total['low']:.2g}, {total['high']:.2g}]"


def _evidence(row: Mapping[str, Any]) -> str:
    """Show how many verdicts the decision rests on, and until when they count."""
    runs = [run for run in row["runs"].values() if run is not None]
    ended = [run for run in runs if run["outcome"]]
    expiries = [run["result"]["expires_at"] for run in ended if run.get("result")]
    if not expiries:
        return "–"
    until = datetime.fromisoformat(min(expiries)).astimezone()
    return f"{len(ended)} of {len(runs)}\nto {until:%m-%d}"


def _overall(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sum up: runs done, and the time left at the pace of the runs that have ended."""
    runs = [run for row in rows for run in row["runs"].values() if run is not None]
    done = [run for run in runs if run["finished_at"]]
    text = f"{len(done)} of {len(runs)} gate runs done"
    left = _seconds_left(runs)
    return text if not left else f"{text}, about {max(1, round(left / 60))} min left"


def _seconds_left(runs: Sequence[Mapping[str, Any]]) -> float | None:
    pace: dict[str, list[float]] = {}
    for run in runs:
        if run["finished_at"] and run["started_at"]:
            took = datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(
                run["started_at"]
            )
            pace.setdefault(run["gate"], []).append(took.total_seconds())
    left = 0.0
    for run in runs:
        if run["finished_at"]:
            continue
        if run["gate"] not in pace:
            return None
        left += sum(pace[run["gate"]]) / len(pace[run["gate"]])
    return left


def _budget(document: Mapping[str, Any]) -> str:
    e, s = document["equivalence"], document["serving"]
    return (
        f"α = {e['alpha']}, up to {e['sampled']['max_tokens']} sampled tokens a setting, "
        f"{s['confirm_blocks']} fresh block pairs at {int(100 * s['confidence'])} % (one-sided); "
        f"speed-up must be above {s['limits']['min_speedup']:g}"
    )
