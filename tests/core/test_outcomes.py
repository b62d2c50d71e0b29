"""OUTCOMES.csv is read strictly: a cell that cannot be read is named by its row."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatekeeper.core.outcomes import read_outcomes
from gatekeeper.errors import EvidenceError, GatekeeperError, InputError, UnknownKey

ROWS = "duration_s,abandoned,session\n1.5,yes,a\n2,no,a\n3e1,0,b\n4,TRUE,c\n"


def test_rows_and_the_digest_of_the_file() -> None:
    found = read_outcomes(ROWS.encode())
    assert found.table["duration_s"].tolist() == [1.5, 2.0, 30.0, 4.0]
    assert found.table["abandoned"].tolist() == [1, 0, 0, 1]
    assert found.table["session"].tolist() == ["a", "a", "b", "c"]
    assert found.data == hashlib.sha256(ROWS.encode()).hexdigest()
    assert read_outcomes(b"\xef\xbb\xbf" + ROWS.encode()).table.equals(found.table)


def test_rows_are_chosen_by_route_and_load_and_the_digest_stays_the_files() -> None:
    text = (
        b"session,route,concurrency,duration_s,abandoned\n"
        b"a,chat,1,1,yes\nb,chat,4,2,no\nc,mail,4,3,no\nd,chat,9,4,no\n"
    )
    whole = read_outcomes(text)
    assert len(whole.table) == 4
    part = read_outcomes(text, route="chat", min_concurrency=2, max_concurrency=8)
    assert part.table["duration_s"].tolist() == [2.0]
    assert part.data == whole.data
    with pytest.raises(EvidenceError, match="holds no outcome"):
        read_outcomes(text, route="search")


@pytest.mark.parametrize(
    "choice", [{"route": "chat"}, {"min_concurrency": 2}, {"max_concurrency": 2}]
)
def test_rows_cannot_be_chosen_by_a_column_that_is_not_there(choice: dict[str, object]) -> None:
    with pytest.raises(InputError, match="is missing"):
        read_outcomes(ROWS.encode(), **choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("", "outcomes", "the file is empty"),
        ("duration_s,abandoned\n1,1\n", "outcomes.session", "missing"),
        ("duration_s,duration_s,abandoned,session\n", "outcomes.duration_s", "once"),
        ("duration_s,abandoned,session\n1,1\n", "outcomes", "2 values for 3"),
        (ROWS + "5,maybe,d\n", "outcomes.abandoned", "row 5"),
        (ROWS + "5,,d\n", "outcomes.abandoned", "row 5"),
        (ROWS + "soon,no,d\n", "outcomes.duration_s", "row 5"),
        (ROWS + "nan,no,d\n", "outcomes.duration_s", "row 5"),
        (ROWS + "inf,no,d\n", "outcomes.duration_s", "row 5"),
        (ROWS + "0,no,d\n", "outcomes.duration_s", "row 5"),
        (ROWS + "-3,no,d\n", "outcomes.duration_s", "row 5"),
        (ROWS + "5,no, \n", "outcomes.session", "row 5"),
        ('duration_s,abandoned,session\n1,no,"a\n', "outcomes", "cannot be read"),
        ("duration_s,abandoned,session\n", "outcomes", "holds no outcome"),
    ],
)
def test_what_cannot_be_read_is_named_by_field_and_row(text: str, field: str, said: str) -> None:
    with pytest.raises((InputError, EvidenceError)) as caught:
        read_outcomes(text.encode())
    assert caught.value.field == field
    assert said in str(caught.value)
    assert caught.value.remedy


def test_unknown_columns_and_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnknownKey) as caught:
        read_outcomes(b"duration_s,abandoned,session,wait\n1,no,a,2\n")
    assert caught.value.value == "wait"
    with pytest.raises(InputError, match="cannot be read"):
        read_outcomes(b"\xff\xfe\x00duration")


@settings(max_examples=60)
@given(st.binary(max_size=80))
@example(b"duration_s,abandoned,session\n1e999,no,a\n")
@example(b"duration_s,abandoned,session\n" + b"1_0,no,a\n")
def test_any_bytes_are_read_or_refused(tail: bytes) -> None:
    for content in (tail, ROWS.encode() + tail):
        try:
            found = read_outcomes(content)
        except GatekeeperError as error:
            assert "\n" not in str(error)  # noqa: PT017 - refusing is one of two right answers
        else:
            assert len(found.table) > 0
