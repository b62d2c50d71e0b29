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
from gatekeeper.reports import number_forms as forms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["Screen", "cell", "decision_table"]

_LOG_WIDTH = 132
_ANY_WIDTH = 10_000
_WIDEST = {
    "speed-up": "1.80× at 1 ",
    "value per task": "[0.0001, 0.009]",
    "reason": "insufficient",
    "evidence": "to 12-01",
}
"""Columns whose cells take several lines, with what they hold on one."""
_CAPTION = (
    "speed-up: time per token, ordinary ÷ speculative, at N concurrent requests: those that the value "
    "is priced at, the worst that passed; where nothing is priced, the best measured\n"
    "γ: draft tokens a round; where it differs by load, from the lowest concurrency up\n"
    "evidence: gates with a verdict, of those that run, and the day (month-day) until which all count"
)
_TYPICAL_S = {"equivalence": 60.0, "serving": 40.0, "outcome": 70.0}
"""What a gate of the demo takes on two idle cores: a first estimate, until one has ended here."""
_OTHER_GATE_S = 60.0
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
            self._live.update(Group(self._table(rows), Text(_overall(rows), style="dim")))
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

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        return decision_table(rows, width=self._console.width)

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
        say(self._table(rows))
        for row in rows:
            say(
                f"  [bold]{row['route'].name}[/bold] ({row['route'].about}): "
                f"{row['decision']['explanation']}"
            )
            if row["decision"]["reason"] == "insufficient_evidence" and _narrowing(row):
                say(f"    {_narrowing(row)}")
            say(f"    report: {reports[row['route'].name]}", soft_wrap=True)
        if agent is not None:
            say()
            say(f"What an agent of [bold]{agent['route']}[/bold] saw:")
            priced = {row["route"].name: row.get("value") for row in rows}
            for line in lines(agent, priced.get(agent["route"])):
                say(f"  {line}")
            say(
                "  Calls of the arm that speculated belong to no route, and reports count them so: "
                "they decode faster already, and pricing them would count the saving twice."
            )
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


def decision_table(rows: Sequence[Mapping[str, Any]], *, width: int = _LOG_WIDTH) -> Table:
    """Draw each route: its gates, the action and window, the measured speed-up, value, reason.

    A route is a row where ``width`` has room for all its columns, else a column: nothing is cut off.
    """
    gates = list(rows[0]["runs"]) if rows else []
    heads = ["route", "artifact", *gates, "action", "γ", "speed-up", "value per task", "reason"]
    heads.append("evidence")
    body = [_cells(row, gates) for row in rows]
    table = _blank()
    for head in heads:
        widest = "INCONCLUSIVE" if head in gates else _WIDEST.get(head, head)
        # told outright: a table that has to shrink goes below the least width of its columns
        most = len(widest) if head == "reason" else None
        table.add_column(head, no_wrap=most is None, min_width=len(widest), max_width=most)
    for cells in body:
        table.add_row(*cells)
    if Console(width=_ANY_WIDTH).measure(table).maximum <= width:
        return table
    turned = _blank()
    first, *others = zip(heads, *body, strict=True)
    for head in first:
        turned.add_column(head)
    for column in others:
        turned.add_row(*column)
    return turned


def _blank() -> Table:
    return Table(
        title="Enable or bypass?",
        title_justify="left",
        caption=_CAPTION,
        caption_justify="left",
        expand=False,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _cells(row: Mapping[str, Any], gates: Sequence[str]) -> list[str | Text]:
    decision = row["decision"]
    reason = Text("waiting for its gates", style="dim")
    if row["done"]:
        reason = Text(decision["reason"].replace("_", " "))
    return [
        row["route"].name,
        row["route"].artifact,
        *(cell(row["runs"][gate]) for gate in gates),
        Text(decision["action"], style="bold green" if decision["action"] == "enable" else ""),
        _windows(decision),
        _speedup(row),
        _value(row),
        reason,
        _evidence(row),
    ]


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


def _speedup(row: Mapping[str, Any]) -> str:
    """Show the ratio that the pricing names, be the value known or not; else the best measured."""
    value = row.get("value") or {}
    if value.get("speedup"):
        s, at = value["speedup"], value["speedup"]["concurrency"]
    else:
        run = row["runs"].get("serving") or {}
        regions = (run.get("result") or {}).get("summary", {}).get("regions") or []
        known = [r for r in regions if None not in ((r.get("speedup") or {"": None}).values())]
        if not known:
            return "–"
        best = max(known, key=lambda r: r["speedup"]["low"])
        s, at = best["speedup"], best["concurrency"]
    return f"{s['ratio']:.2f}× at {at}\n({s['low']:.2f}–{s['high']:.2f})"


def _value(row: Mapping[str, Any]) -> str:
    """Show the incremental value per task with its interval."""
    total = (row.get("value") or {}).get("total")
    if total is None:
        return "unknown" if row.get("value") else "–"
    value, low, high = (forms.digits(total[end], 2) for end in ("per_task", "low", "high"))
    return f"{value} {total['currency']}\n[{low}, {high}]"


def _narrowing(row: Mapping[str, Any]) -> str | None:
    """What would narrow the value interval, where the pricing says it, and what a price would do."""
    value = row.get("value") or {}
    if not value.get("narrowing"):
        return None
    return " ".join(value["what_would_change"][:2])


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
    """Sum up: gates settled of all there may be, and about how long the others take.

    A gate that a route which is done never ran (another one failed it) is settled without a run.
    """
    cells = [(gate, run, row["done"]) for row in rows for gate, run in row["runs"].items()]
    settled = [done if run is None else bool(run["finished_at"]) for _, run, done in cells]
    text = f"{sum(settled)} of {len(cells)} gate runs done"
    left = _seconds_left(cells)
    return text if not left else f"{text}, about {max(1, round(left / 60))} min left"


def _seconds_left(cells: Sequence[tuple[str, Mapping[str, Any] | None, bool]]) -> float:
    """Seconds of the runs that have not ended, each as long as its gate took so far.

    A gate that has not ended anywhere yet takes its typical time, times how this machine compares
    with the typical one on the gates that have.
    """
    took: dict[str, list[float]] = {}
    for gate, run, _ in cells:
        if run is not None and run["finished_at"] and run.get("started_at"):
            ends = (datetime.fromisoformat(run[at]) for at in ("started_at", "finished_at"))
            began, ended = ends
            took.setdefault(gate, []).append((ended - began).total_seconds())
    mean = {gate: sum(times) / len(times) for gate, times in took.items()}
    known = [gate for gate in mean if gate in _TYPICAL_S]
    pace = 1.0
    if known:
        pace = sum(mean[gate] for gate in known) / sum(_TYPICAL_S[gate] for gate in known)
    left = 0.0
    for gate, run, done in cells:
        if done if run is None else run["finished_at"]:
            continue
        whole = mean.get(gate, pace * _TYPICAL_S.get(gate, _OTHER_GATE_S))
        progress = None if run is None else run.get("progress")
        share = progress["done"] / progress["total"] if progress and progress.get("total") else 0.0
        left += whole * (1 - share / 2)  # a phase is not the whole run
    return left


def _budget(document: Mapping[str, Any]) -> str:
    e, s = document["equivalence"], document["serving"]
    return (
        f"α = {e['alpha']}, up to {forms.count(e['sampled']['max_tokens'])} sampled tokens a "
        f"setting, {s['confirm_blocks']} fresh block pairs at {100 * s['confidence']:g} % "
        "(one-sided); "
        f"speed-up must be above {s['limits']['min_speedup']:g}"
    )
