from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from gatekeeper.worker.evidence import digest, encode, round_trip


def table() -> Any:
    return pd.DataFrame(
        {
            "n": [1, 2, 3],
            "x": [0.1, float("nan"), 1 / 3],
            "name": ["a", "b", "ä"],
            "gaps_s": [[0.5], [], [0.1, 0.2]],
            "where": pd.array([1, None, 3], dtype="Int64"),
        }
    )


def test_equal_tables_give_equal_bytes_and_other_tables_do_not() -> None:
    assert digest(encode(table())) == digest(encode(table()))
    assert digest(encode(table().assign(n=[1, 2, 4]))) != digest(encode(table()))


def test_floats_come_back_to_the_last_bit() -> None:
    files, back = round_trip({"t": table()})
    assert back["t"]["x"].tolist()[2] == 1 / 3
    assert [list(g) for g in back["t"]["gaps_s"]] == [[0.5], [], [0.1, 0.2]]
    assert back["t"]["where"].isna().tolist() == [False, True, False]
    assert digest(encode(back["t"].assign(gaps_s=table()["gaps_s"]))) == digest(files["t"])


@pytest.mark.parametrize("rows", [0, 1])
def test_small_tables_keep_their_columns(rows: Any) -> None:
    _, back = round_trip({"t": table().iloc[:rows]})
    assert list(back["t"].columns) == list(table().columns)
    assert len(back["t"]) == rows
