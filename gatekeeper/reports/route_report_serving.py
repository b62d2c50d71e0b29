"""Serving in a report: acceptance matrix, the two surfaces, the memory ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.charts import Chart, Forest, Interval, Lines, Series, Stack
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Charts,
    Line,
    Paragraph,
    Piece,
    RunFigures,
    Section,
    Table,
    line,
)
from gatekeeper.reports.route_report_gates import mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["serving_sections"]

_ORDINARY, _SPECULATIVE = "ordinary", "speculative"
_PURPOSES = (
    ("target_weights", "Target weights"),
    ("target_kv", "Target KV cache"),
    ("draft_weights", "Draft weights"),
    ("draft_kv", "Draft KV cache"),
    ("candidates", "Candidate tokens"),
    ("workspace", "Verification workspace"),
)

_UNSTATED = -1
"""A window that two running servers did not state, as their tables and claims have it."""

_COUNTED = (
    "Weights count every copy that the engine holds, so they exceed the model's file where it keeps "
    "a matrix in several layouts for speed; on a processor the reference engine keeps two, one for "
    "single rows and one for batches. A scorer that reads these same weights adds nothing."
)


_CHEAP_ROUND = (
    "A break-even below one token a round means that a whole round was measured to take less time "
    "than an ordinary step at that load: verifying several rows together came out cheaper than the "
    "ordinary step. Then speculation gains even where nothing is accepted, for every round commits "
    "at least the target's own token."
)


def serving_sections(
    document: Mapping[str, Any], figures: RunFigures | None
) -> tuple[Section, ...]:
    """The three sections that rest on the serving gate."""
    if figures is None:
        absent: tuple[Block, ...] = (
            Paragraph(("The serving gate has not run for this artifact and policy.",)),
        )
        return (
            Section("acceptance", "Acceptance matrix", absent),
            Section("surfaces", "Latency and throughput against concurrency", absent),
            Section("memory", "Memory ledger", absent),
        )
    return (
        Section("acceptance", "Acceptance matrix", _acceptance(document["route"], figures)),
        Section("surfaces", "Latency and throughput against concurrency", _surfaces(figures)),
        Section("memory", "Memory ledger", _memory(figures)),
    )


def _rows(figures: RunFigures, path: str) -> Sequence[Mapping[str, Any]]:
    return figures.value(path) or ()


def _nothing(what: str) -> tuple[Block, ...]:
    return (Paragraph((f"The run recorded no {what}.",)),)


def _acceptance(route: str, figures: RunFigures) -> tuple[Block, ...]:
    matrix = _rows(figures, "summary.acceptance_matrix")
    if not matrix:
        return _nothing("speculative rounds")
    rows = []
    for i, row in enumerate(matrix):
        at, c = f"summary.acceptance_matrix[{i}]", row["concurrency"]
        region = _region(figures, c)
        rows.append(
            (
                (f"{row['slice'].replace('_', ' ')} at ", figures.figure(f"{at}.concurrency", forms.count)),
                (figures.figure(f"{at}.gamma", forms.count),),
                (figures.figure(f"{at}.drafted_per_round", forms.plain, f"drafted_per_round.c{c}"),),
                (
                    figures.figure(
                        f"{at}.accepted_per_round", forms.plain, f"accepted_per_round.c{c}"
                    ),
                ),
                (figures.figure(f"{at}.acceptance_rate", forms.share, f"acceptance_rate.c{c}"),),
                (figures.figure(f"{at}.verify_s", forms.duration, f"verify_s.c{c}"),),
                _tpot(figures, at, c, region),
                _progress(route, figures, c, region),
            )
        )  # fmt: skip
    columns = (
        "slice at concurrency",
        "window",
        "drafted / round",
        "accepted / round",
        "accepted share",
        "verification",
        "net TPOT (ordinary)",
        "tokens / round (break-even)",
    )
    blocks: list[Block] = [Table("Slice × load", columns, tuple(rows))]
    if any(_below_one(route, figures, row["concurrency"]) for row in matrix):
        blocks.append(Paragraph((_CHEAP_ROUND,), muted=True))
    widest = max((len(row["conditional_acceptance"]) for row in matrix), default=0)
    if widest:
        blocks += [_by_position(figures, matrix, widest), Charts((_curves(matrix, widest),))]
    return tuple(blocks)


def _region(figures: RunFigures, concurrency: int) -> int | None:
    regions = _rows(figures, "summary.regions")
    return next((i for i, r in enumerate(regions) if r["concurrency"] == concurrency), None)


def _tpot(figures: RunFigures, at: str, c: int, region: int | None) -> Line:
    own = f"tpot_s.{_SPECULATIVE}.c{c}"
    net = figures.figure(f"{at}.tpot_s", forms.duration, own)
    if region is None:
        return (net,)
    path = f"summary.regions[{region}].tpot_s.{_ORDINARY}"
    base = figures.figure(path, forms.duration, f"tpot_s.{_ORDINARY}.c{c}")
    return (net, " (", base, ")")


def _progress(route: str, figures: RunFigures, c: int, region: int | None) -> Line:
    if region is None:
        return (UNKNOWN,)
    path = f"summary.regions[{region}].mean_accepted_length"
    committed = figures.figure(path, forms.plain, f"mean_accepted_length.c{c}")
    name = f"report/{route}/break_even.c{c}"
    claim = figures.ledger.claims.get(name)
    needed = figures.ledger.figure(None if claim is None else claim["value"], forms.plain, name)
    return (committed, " (", needed, ")")


def _below_one(route: str, figures: RunFigures, c: int) -> bool:
    """Whether a round pays at that load although nothing of the draft is accepted."""
    claim = figures.ledger.claims.get(f"report/{route}/break_even.c{c}")
    return claim is not None and claim["value"] < 1


def _by_position(figures: RunFigures, matrix: Sequence[Mapping[str, Any]], widest: int) -> Table:
    rows = []
    for i, row in enumerate(matrix):
        curve: list[Line] = []
        for k in range(widest):
            path = f"summary.acceptance_matrix[{i}].conditional_acceptance[{k}]"
            own = f"conditional_acceptance.c{row['concurrency']}.k{k}"
            reached = k < len(row["conditional_acceptance"])
            cell: Piece = figures.figure(path, forms.share, own) if reached else "–"
            curve.append((cell,))
        name = f"{row['slice'].replace('_', ' ')} at {row['concurrency']}"
        rows.append(((name,), *curve))
    columns = ("slice at concurrency", *(f"position {k + 1}" for k in range(widest)))
    caption = "P(position accepted | the positions before it were)"
    return Table(caption, columns, tuple(rows))


def _curves(matrix: Sequence[Mapping[str, Any]], widest: int) -> Lines:
    series = tuple(
        Series(
            f"{row['concurrency']} concurrent",
            i,
            tuple(
                (str(k + 1), value, f"position {k + 1}, {forms.share(value)}")
                for k, value in enumerate(row["conditional_acceptance"])
                if value is not None
            ),
        )
        for i, row in enumerate(matrix)
    )
    said = "; ".join(f"{s.name}: {', '.join(text for _, _, text in s.points)}" for s in series)
    return Lines(
        "Conditional acceptance by position",
        f"Conditional acceptance by draft position. {said}",
        "draft position",
        tuple(str(k + 1) for k in range(widest)),
        series,
        top=1.05,
    )


_LEVELS = (
    ("itl_p50_s", "ITL p50", forms.duration),
    ("itl_p95_s", "ITL p95", forms.duration),
    ("tpot_s", "TPOT", forms.duration),
    ("ttft_s", "TTFT p50", forms.duration),
    ("throughput", "Output tokens", forms.per_second),
)
_RATIOS = (
    ("itl_p95_ratio", "ITL p95 ratio"),
    ("ttft_ratio", "TTFT ratio"),
    ("throughput_ratio", "Throughput ratio"),
)


def _surfaces(figures: RunFigures) -> tuple[Block, ...]:
    regions = _rows(figures, "summary.regions")
    blocks: list[Block] = []
    if regions:
        blocks = [
            Paragraph(
                line(
                    "A gap between chunks (ITL) spans a whole round and may carry several tokens, "
                    "so it can grow while the time per token (TPOT) shrinks."
                ),
                muted=True,
            ),
            Charts(
                (
                    _level_chart(regions, "itl_p95_s", "Inter-token latency, p95", 1000.0, "ms"),
                    _level_chart(
                        regions, "throughput", "Verified output throughput", 1.0, "tokens/s"
                    ),
                    *_ratio_charts(regions),
                )
            ),
            _levels(figures, regions),
            _ratios(figures, regions),
        ]
    sweep = _sweep(figures)
    return (*blocks, *sweep) or _nothing("load levels")


def _level_chart(
    regions: Sequence[Mapping[str, Any]], name: str, title: str, scale: float, unit: str
) -> Lines:
    xs = tuple(str(r["concurrency"]) for r in regions)
    series = []
    for style, arm in enumerate((_ORDINARY, _SPECULATIVE)):
        points = tuple(
            (
                str(r["concurrency"]),
                scale * r[name][arm],
                f"{r['concurrency']} concurrent, {scale * r[name][arm]:.4g} {unit}",
            )
            for r in regions
            if r[name][arm] is not None
        )
        series.append(Series(arm, style, points))
    said = "; ".join(f"{s.name}: {', '.join(t for _, _, t in s.points)}" for s in series)
    return Lines(
        f"{title} ({unit})",
        f"{title} against concurrent requests. {said}",
        "concurrent requests",
        xs,
        tuple(series),
    )


def _ratio_charts(regions: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    charts = []
    for name, title, better in (
        ("itl_p95_ratio", "ITL p95", "left is better"),
        ("throughput_ratio", "Throughput", "right is better"),
    ):
        rows = tuple(
            Interval(
                f"{r['concurrency']} concurrent",
                r[name]["ratio"],
                r[name]["low"],
                r[name]["high"],
                forms.ratio(r[name]["ratio"]),
            )
            for r in regions
            if r[name]["ratio"] is not None
        )
        if rows:
            said = "; ".join(f"{row.label}: {row.text}" for row in rows)
            charts.append(
                Forest(
                    f"{title}: speculative ÷ ordinary",
                    f"{title} ratio of speculative to ordinary decoding with its bounds. {said}",
                    f"ratio of paired blocks; {better}",
                    rows,
                    (("no change", 1.0),),
                )
            )
    return tuple(charts)


def _levels(figures: RunFigures, regions: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for i, region in enumerate(regions):
        c = region["concurrency"]
        for arm in (_ORDINARY, _SPECULATIVE):
            cells: list[Line] = [
                (figures.figure(f"summary.regions[{i}].{name}.{arm}", form, f"{name}.{arm}.c{c}"),)
                for name, _, form in _LEVELS
            ]
            rows.append(((f"{c}, {arm}",), *cells))
    columns = ("concurrency, arm", *(title for _, title, _ in _LEVELS))
    return Table("Levels in the confirmation blocks", columns, tuple(rows))


def _ratios(figures: RunFigures, regions: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for i, region in enumerate(regions):
        c, at = region["concurrency"], f"summary.regions[{i}]"
        cells = [
            figures.interval(f"{at}.{name}", forms.ratio, f"{name}.c{c}") for name, _ in _RATIOS
        ]
        predicted = figures.figure(
            f"{at}.predicted_speedup", forms.ratio, f"predicted_speedup.c{c}"
        )
        goodput: Line = ("no objective",)
        if region.get("goodput_difference") is not None:
            goodput = figures.interval(
                f"{at}.goodput_difference",
                forms.plain,
                f"goodput_difference.c{c}",
                centre="mean",
            )
        row: tuple[Line, ...] = (
            (f"{c}",),
            (mark(region["outcome"]),),
            figures.interval(f"{at}.speedup", forms.ratio, f"speedup.c{c}"),
            (predicted,),
            *cells,
            goodput,
            figures.interval(f"{at}.slowdown_spread", forms.ratio, f"slowdown_spread.c{c}"),
        )
        rows.append(row)
    columns = (
        "concurrency",
        "outcome",
        "TPOT speed-up",
        "predicted",
        *(title for _, title in _RATIOS),
        "goodput difference",
        "slowdown spread",
    )
    caption = "Paired ratios with their bounds; predicted is E[P]·T₁ ÷ (Td + Tv + To)"
    return Table(caption, columns, tuple(rows))


def _sweep(figures: RunFigures) -> tuple[Block, ...]:
    surfaces = _rows(figures, "summary.surfaces")
    if not surfaces:
        return ()
    rows = []
    for i, row in enumerate(surfaces):
        c, g = row["concurrency"], row["gamma"]
        cells: list[Line] = []
        for name, form in (
            ("itl_p50", forms.duration),
            ("itl_p95", forms.duration),
            ("tpot_mean", forms.duration),
            ("ttft_p50", forms.duration),
            ("throughput", forms.per_second),
        ):
            own = f"surface.{name}.c{c}.g{_UNSTATED if g is None else g}"
            cells.append((figures.figure(f"summary.surfaces[{i}].{name}", form, own),))
        rows.append(((f"{c}, {_arm(g)}",), *cells))
    columns = ("concurrency, arm", "ITL p50", "ITL p95", "TPOT", "TTFT p50", "Output tokens")
    return (Table("Sweep of windows: it ranks them and proves nothing", columns, tuple(rows)),)


def _arm(gamma: int | None) -> str:
    """A row of the sweep: 0 is ordinary decoding, None a candidate whose window nobody stated."""
    if gamma is None:
        return "candidate (window unknown)"
    return f"window {gamma}" if gamma else "ordinary"


def _predicted(figures: RunFigures, name: str) -> Line:
    own = f"memory_predicted.{name}"
    return (figures.figure(f"summary.memory.predicted.{name}", forms.bytes_, own),)


def _memory(figures: RunFigures) -> tuple[Block, ...]:
    held = figures.value("summary.memory")
    if not held:
        return _nothing("memory ledger")
    rows: list[tuple[Line, Line, Line]] = []
    parts = []
    for name, title in _PURPOSES:
        figure = figures.figure(f"summary.memory.{name}", forms.bytes_, f"memory.{name}")
        rows.append(((title,), (figure,), _predicted(figures, name)))
        if held.get(name) is not None:
            parts.append((title, float(held[name]), forms.bytes_(held[name])))
    for name, title in (("speculative", "of which speculation adds"), ("total", "Total")):
        rows.append(
            (
                (title,),
                (figures.figure(f"summary.memory.{name}", forms.bytes_, f"memory.{name}"),),
                _predicted(figures, name),
            )
        )
    lost = figures.figure(
        "summary.memory.active_sequences_lost", forms.count, "memory.sequences_lost"
    )
    blocks: list[Block] = [
        Table(
            "Most bytes seen of each purpose",
            ("purpose", "held", "predicted before loading"),
            tuple(rows),
        ),
        Paragraph((_COUNTED,), muted=True),
        Paragraph(line("Active sequences that no longer fit beside the draft: ", lost, ".")),
    ]
    if parts:
        said = "; ".join(f"{name}: {text}" for name, _, text in parts)
        blocks.insert(
            0, Charts((Stack("Memory by purpose", f"Memory by purpose. {said}", tuple(parts)),))
        )
    unmeasured = held.get("unmeasured") or []
    if unmeasured:
        names = ", ".join(name.replace("_", " ") for name in unmeasured)
        blocks.append(
            Paragraph(
                (f"The engine cannot measure {names}; the total is a lower bound.",), muted=True
            )
        )
    return tuple(blocks)
