"""After the gates: a real agent in both arms, what its tasks are worth, and a report per route."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from gatekeeper.cli.demo.flow import ok, revoke_earlier
from gatekeeper.config import PORT, data_dir
from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import httpx

    from gatekeeper.cli.demo.flow import Demo
    from gatekeeper.config import Settings

__all__ = ["compare_arms", "next_steps", "priced_tasks", "wait_for_values", "write_reports"]

_PATIENCE_S = 60.0
_POLL_S = 1.0
_TOKEN_TTL_S = 7 * 24 * 3600.0
_NEXT_STEPS = "demo-next-steps"
_DECIDED_BY_GATES = ("equivalence_failed", "serving_failed", "outcome_failed")


def compare_arms(
    walk: Demo, row: Mapping[str, Any], home: Path, note: Callable[[str], None]
) -> dict[str, Any] | None:
    """Run the agent on a route's artifact, ordinary and speculative; None where nothing was measured.

    The result is kept beside the database and belongs to the serving run that it is compared with:
    a second demo on the same evidence runs no second agent.

    Raises:
        Unavailable: the agent failed; the remedy names its log.
    """
    serving = row["runs"].get("serving")
    regions = [r for r in _regions(serving) if r.get("speedup")]
    if not regions:
        return None
    kept = home / f"agent-{serving['id']}.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    artifact = home / "agent-artifact.json"
    artifact.write_text(json.dumps(walk.document(row["route"])))
    levels = []
    for region in regions:
        at, s = region["concurrency"], region["speedup"]
        levels += [f"--gamma={at}={region['gamma']}"]
        levels += [f"--speedup={at}={s['low']},{s['ratio']},{s['high']}"]
    note(f"an agent of {row['route'].name} runs its tasks with and without speculation")
    part = kept.with_suffix(".part")
    command = [
        *(sys.executable, "-m", "gatekeeper.cli.demo.agent", "--json"),
        *("--home", str(home), "--url", walk.url, "--route", row["route"].name),
        *("--artifact-file", str(artifact), *levels),
    ]
    environment = {**os.environ, "GATEKEEPER_TOKEN": walk.token, "OMP_NUM_THREADS": "1"}
    with part.open("wb") as sink, (home / "agent.log").open("a") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command with our own arguments
            command, stdout=sink, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            for line in process.stderr or ():
                log.write(line)
                if line.startswith("agent: "):
                    note(line.removeprefix("agent: ").rstrip())
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    # Status 1 with a result: it ran, and the two do not agree.
    if process.returncode not in (0, 1) or not part.read_text().strip():
        raise Unavailable(
            f"ended with status {process.returncode}",
            field="agent",
            remedy=f"read {home / 'agent.log'}, then run the demo again: finished runs are kept",
        )
    part.replace(kept)
    result: dict[str, Any] = json.loads(kept.read_text())
    return result


def priced_tasks(agent: Mapping[str, Any]) -> int:
    """How many of the agent's tasks a pricing can use: those of the baseline arm."""
    return sum(row["problem"] is None for row in agent["tasks"])


def wait_for_values(
    client: httpx.Client, routes: Sequence[str], *, expected: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Pricing of each route once its exported tasks are complete; what is there after a minute."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        values = {name: ok(client.get(f"/v1/routes/{name}/value")) for name in routes}
        waiting = [n for n, count in expected.items() if values[n]["tasks"] < count]
        if not waiting or time.monotonic() > deadline:
            return values
        time.sleep(_POLL_S)


def write_reports(client: httpx.Client, routes: Sequence[str], folder: Path) -> dict[str, Path]:
    """Write one self-contained page per route; return where they lie."""
    from gatekeeper.reports.route_html import render_html
    from gatekeeper.reports.route_report import lay_out

    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name in routes:
        document = ok(client.get(f"/v1/reports/{name}"))
        written[name] = folder / f"{name}.html"
        written[name].write_text(render_html(lay_out(document)), encoding="utf-8")
    return written


def next_steps(
    client: httpx.Client, settings: Settings, rows: Sequence[Mapping[str, Any]]
) -> list[tuple[str, list[str]]]:
    """Commands that work as printed, against ``make serve``, with a token of a week's life.

    ``rows`` are the decision table's, with their values: where no price of a second would turn any
    decision, another first step is given.

    Only a token's hash is stored, so the one of an earlier demo cannot be printed again: it is
    revoked, and this one takes its place.
    """
    replaced = revoke_earlier(client, _NEXT_STEPS)
    made = ok(
        client.post(
            "/v1/tokens",
            json={"name": _NEXT_STEPS, "role": "admin", "ttl_s": _TOKEN_TTL_S},
        )
    )
    revoked = " (its token replaces the last demo's, now revoked)" if replaced else ""
    us, url = sys.argv[0], f"http://127.0.0.1:{PORT}"
    prices = data_dir("policies") / "economics" / "demo.yaml"
    pair = "--baseline-url http://127.0.0.1:8001/v1 --candidate-url http://127.0.0.1:8002/v1"
    return [
        (
            f"In another terminal, serve this home; then, here{revoked}:",
            [
                f"{us} serve --home {settings.home} --port {PORT}",
                f"export GATEKEEPER_URL={url} GATEKEEPER_HOME={settings.home}",
                f"export GATEKEEPER_TOKEN={made['token']}",
            ],
        ),
        _first_step(rows, us, prices),
        (
            "2. Your own agents: a file, or two variables for their OpenTelemetry exporter",
            [
                f"{us} profile my-trace.json",
                f"export OTEL_EXPORTER_OTLP_TRACES_ENDPOINT={url}/v1/traces",
                "export OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + made["token"],
            ],
        ),
        (
            "   Calls are priced on the route whose rules match (route set NAME --file); which is it?",
            [f"{us} route test my-trace.json"],
        ),
        ("   On a route of this demo they are priced together with the demo's own tasks.", []),
        (
            "3. Your own servers, one plain, one speculating: cost and reach of a verdict, then the verdict",
            [
                f"{us} gate run --route own-servers {pair} --plan",
                f"{us} worker --home {settings.home} --idle-exit 600 &",
                f"{us} gate run --route own-servers {pair} --wait",
            ],
        ),
        ("Every figure again, from its evidence:", [f"{us} claims verify --home {settings.home}"]),
    ]


def _first_step(rows: Sequence[Mapping[str, Any]], us: str, prices: Path) -> tuple[str, list[str]]:
    """Another price of a second, where one turns a decision; else what does."""
    priced = [row for row in rows if row["decision"]["reason"] not in _DECIDED_BY_GATES]
    unknown = [row for row in priced if not (row.get("value") or {}).get("sensitivity")]
    if unknown or any(_a_price_turns(row["value"]) for row in priced):
        return (
            f"1. What is a second worth to you? Change value_of_second in {prices}, and",
            [f"{us} policy apply {prices.parents[1]}"],
        )
    if not priced:
        return (
            "1. A gate decides every route here, and no price turns that. Why, and what would change it:",
            [f"{us} report {row['route'].name}" for row in rows],
        )
    never = "1. No price of a second would turn a decision here; what would is in each report:"
    return (
        never,
        [f"{us} report {row['route'].name}" for row in priced],
    )


def _a_price_turns(value: Mapping[str, Any]) -> bool:
    """Whether the decision turns at some price of a second."""
    return any(
        row["flips_at"] is not None
        for row in value["sensitivity"]["rows"]
        if row["input"] == "value_of_second" or row["input"].startswith("value_of_time")
    )


def _regions(run: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return ((run or {}).get("result") or {}).get("summary", {}).get("regions") or []
