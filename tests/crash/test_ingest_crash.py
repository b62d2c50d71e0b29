"""kill -9 of the server while exporters send, 20 times; ``make verify STAGE=ingest-crash`` does 50."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmark_scripts import script

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 20


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_no_acknowledged_span_is_lost_and_none_is_there_twice(
    database_url: str, tmp_path: Path
) -> None:
    postgres = database_url if database_url.startswith("postgresql") else None
    figures = script("ingest_crash").run(tmp_path / "home", kills=KILLS, database_url=postgres)
    assert figures["holds"], figures
