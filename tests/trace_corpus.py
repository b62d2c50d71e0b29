"""Where the real trace files are, when they are there at all, and what is known of each.

`corpus.toml` states, per file, what profiling it gives, or why it is refused. Figures are whole
nanoseconds, all but the wall on the critical path; ``human_wait_ns`` is left out where it is 0, and
decode is unknown where calls of grade D lie on the path. A CRISP file that expects something else
than is found carries the reason, in one line written by hand.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatekeeper import plugins
from gatekeeper.core.task_profile import TaskProfile, profile_task, token_rates
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from gatekeeper.core.traces import Trace

ROOT = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "traces"
ABSENT = "the corpus of real traces is not beside this repository"
MANIFEST = Path(__file__).with_name("corpus.toml")


def name(path: Path) -> str:
    """Folder and file, as the manifest names it."""
    return f"{path.parent.name}/{path.name}"


@cache
def manifest() -> dict[str, dict[str, Any]]:
    """What is committed, by name of file."""
    return tomllib.loads(MANIFEST.read_text())


def every_file() -> list[Path]:
    """All files of the corpus; none where it is absent."""
    return sorted(p for p in ROOT.glob("*/*") if p.is_file()) if ROOT.is_dir() else []


def files(*, readable: bool) -> list[Path]:
    """Corpus files that are profiled, or all the others."""
    return [p for p in every_file() if ("refused" not in manifest().get(name(p), {})) == readable]


@cache
def formats() -> tuple[Any, ...]:
    """Every installed trace format."""
    return tuple(plugins.load_all("gatekeeper.traces").values())


@cache
def traces(path: Path) -> tuple[Trace, ...]:
    """Traces of a file, each file once."""
    return read_traces(path.read_bytes(), formats())


@cache
def profiles(path: Path) -> tuple[TaskProfile, ...]:
    """Profiles of a file's tasks, as ``gatekeeper profile FILE`` makes them."""
    rates = token_rates(traces(path))
    return tuple(profile_task(trace, rates=rates) for trace in traces(path))


def observe(path: Path) -> dict[str, Any]:
    """What profiling a file gives now, in the manifest's terms."""
    try:
        made = profiles(path)
    except TraceError as error:
        return {"refused": str(error)}
    entry = {"format": made[0].task.source_format, "tasks": [_task(one) for one in made]}
    expected = crisp_expects(path)
    if expected is not None:
        found = [exclusive_us(one) for one in made]
        entry["crisp"] = "agrees" if found == expected else "differs"
        if found != expected:
            entry["exclusive_us"] = found
    return entry


def _task(one: TaskProfile) -> dict[str, Any]:
    in_calls = sum(s.duration_ns for s in one.path if one.graph.in_call[s.node])
    unknown = one.evidence_grade == "D" and one.model_calls > 0
    figures: dict[str, Any] = {
        "grade": one.evidence_grade,
        "model_calls": one.model_calls,
        "wall_ns": one.task.wall_ns,
        "model_ns": int(in_calls),
        "decode_ns": "unknown" if unknown else one.critical_path_ns["decode"],
    }
    if one.critical_path_ns["human_wait"]:
        figures["human_wait_ns"] = one.critical_path_ns["human_wait"]
    if one.without_waiting is not None:
        figures["waiting"] = one.without_waiting.basis
        figures["wall_without_waiting_ns"] = int(one.without_waiting.wall_ns)
    if not one.trusted:
        figures["trusted"] = False
    return figures


def crisp_expects(path: Path) -> list[dict[str, int]] | None:
    """Time on the critical path by operation, in microseconds, that a CRISP file says of itself."""
    if path.parent.name != "crisp":
        return None
    told = json.loads(path.read_text()).get("testing")
    if not told:
        return None
    each = told if isinstance(told, list) else [told["opTimeExclusive"]]
    return [{operation: us for operation, us in one.items() if us} for one in each]


def exclusive_us(one: TaskProfile) -> dict[str, int]:
    """Time on the critical path by operation in CRISP's way: every moment belongs to one span.

    A gap before a span starts is its parent's time, a gap before it ends its own.
    """
    total: Counter[str] = Counter()
    works = one.task.works
    for step in one.path:
        at = one.graph.work[step.node]
        if at is None:
            continue
        owner: int | None = at
        if step.lag_ns and one.graph.start_ns[step.node] == (
            works[at].span.start_ns - one.task.start_ns
        ):
            owner = works[at].parent
        for index, length in ((at, step.duration_ns), (owner, step.lag_ns)):
            if length:
                span = None if index is None else works[index].span
                label = "outside" if span is None else f"[{span.service}] {span.name}"
                total[label] += int(length) // 1000
    return dict(sorted(total.items()))


def render(entries: dict[str, dict[str, Any]]) -> str:
    """The manifest as text, files in order, one line a task."""
    out = [
        "# Written by GATEKEEPER_UPDATE_CORPUS=1 pytest tests/adapters/traces/test_trace_corpus.py"
    ]
    for file, entry in sorted(entries.items()):
        out += ["", f"[{json.dumps(file)}]"]
        for key, value in entry.items():
            if isinstance(value, list):
                out += [f"{key} = [", *(f"  {_inline(one)}," for one in value), "]"]
            else:
                out.append(f"{key} = {_scalar(value)}")
    return "\n".join(out) + "\n"


def _inline(table: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{_key(k)} = {_scalar(v)}" for k, v in table.items()) + " }"


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:_}" if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
