"""``gatekeeper equivalence``: check recorded evidence for exactness."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["equivalence"]


@click.group()
def equivalence() -> None:
    """Exactness of speculative decoding, from recorded tokens."""


@equivalence.command()
@click.argument("evidence", type=click.Path(path_type=Path), metavar="EVIDENCE.npz")
@click.option("--alpha", default=0.001, show_default=True, help="False-alarm rate, strict part.")
@click.option("--window", default=0.01, show_default=True, help="Tolerance inside the window.")
@click.option("--bonus", default=0.02, show_default=True, help="Tolerance at bonus positions.")
@click.option("--delta", default=0.0, show_default=True, help="Numeric envelope, |log p'/p|.")
@click.option("--end-token", multiple=True, type=int, help="Id of an end token; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def check(
    *,
    evidence: Path,
    alpha: float,
    window: float,
    bonus: float,
    delta: float,
    end_token: tuple[int, ...],
    as_json: bool,
) -> None:
    """Check EVIDENCE.npz: exit 0 PASS, 1 FAIL or INCONCLUSIVE, 2 bad input."""
    from gatekeeper.gates.equivalence_check import check as answer_for

    answer = answer_for(
        _load(evidence), alpha=alpha, window=window, bonus=bonus, delta=delta, end_tokens=end_token
    )
    click.echo(json.dumps(answer, allow_nan=False) if as_json else _text(answer))
    sys.exit(0 if answer["outcome"] == "PASS" else 1)


def _load(path: Path) -> dict[str, Any]:
    import zipfile
    import zlib

    import numpy as np

    remedy = "write it with numpy.savez, plain arrays only"
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise InputError(
                    "is not an .npz file", field="evidence", value=str(path), remedy=remedy
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                size = sum(member.file_size for member in archive.zip.infolist())
                if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                    raise InputError(
                        f"unpacks to {size} bytes, more than this machine's memory",
                        field="evidence",
                        value=str(path),
                        remedy="record fewer tokens in one file",
                    )
                return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise InputError(
            f"cannot be read: {(error.strerror or str(error)).lower()}",
            field="evidence",
            value=str(path),
            remedy="name a readable .npz file",
        ) from error
    except (
        ValueError,
        EOFError,
        MemoryError,
        RuntimeError,  # encrypted, or (NotImplementedError) packed by an unknown method
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(
            f"cannot be read: {error}", field="evidence", value=str(path), remedy=remedy
        ) from error


def _text(answer: Mapping[str, Any]) -> str:
    from gatekeeper.reports.number_forms import count, digits, fixed

    strict, trace = answer["strict"], answer["trace"]
    decided = answer["tokens_to_decision"]
    after = f", decided after {count(decided)}" if decided is not None else ""
    lines = [
        f"{answer['outcome']}: {count(answer['tokens'])} tokens{after}",
        f"strict: largest E = 10^{fixed(strict['log10_e'], 2)}, limit {count(1 / strict['alpha'])}",
        f"strongest alternative: {strict['worst_family']}",
    ]
    lines += [
        f"tolerance {digits(row['tolerance'])}: {row['outcome']:<12} "
        f"{fixed(row['deviation'], 4, signed=True)} in [{fixed(row['low'], 4, signed=True)}, "
        f"{fixed(row['high'], 4, signed=True)}]  {row['feature']} ({row['stratum']}, "
        f"n={count(row['n'])})"
        for row in answer["tolerance"]
    ]
    if trace["available"]:
        worst = max(trace["log10_e"].items(), key=lambda item: item[1])
        lines.append(
            f"trace (diagnostic only): {count(trace['impossible_corrections'])} impossible "
            f"corrections of {count(trace['corrections'])}; strongest law broken: {worst[0]}, "
            f"E = 10^{fixed(worst[1], 2)}"
        )
    else:
        lines.append(f"trace (diagnostic only): not available, {trace['reason']}")
    return "\n".join(lines)
