"""Where the real trace files are, when they are there at all."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "traces"
ABSENT = "the corpus of real traces is not beside this repository"
READABLE_FOLDERS = ("agent-prism", "crisp", "jaeger", "jaeger-ui", "langfuse", "otlp-proto")


def files(*, readable: bool) -> list[Path]:
    """Corpus files of the formats that are read, or all the others."""
    if not ROOT.is_dir():
        return []
    every = sorted(p for p in ROOT.glob("*/*") if p.is_file())
    return [p for p in every if (p.parent.name in READABLE_FOLDERS) == readable]
