from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatekeeper.core.stats.evidence import RequestEvidence, from_arrays
from gatekeeper.errors import InputError


def good() -> dict[str, np.ndarray]:
    return {
        "token": np.array([0, 1, 2, 1]),
        "p": np.full((4, 4), 0.25, dtype=np.float32),
        "q": np.full((4, 4), 0.25, dtype=np.float32),
        "k": np.array([0, 0, 1, 1]),
        "kind": np.array([0, 0, 2, 1]),
        "draft": np.array([0, 1, -1, 3]),
        "round": np.array([0, 0, 0, 0]),
        "prompt": np.array([7, 8, 7, 8]),
        "replicate": np.array([0, 1, 0, 1]),
        "request": np.array([5, 3, 5, 3]),
    }


def test_rows_are_split_by_request_in_order_of_appearance() -> None:
    first, second = from_arrays(good())
    assert (first.request, first.prompt, first.token.tolist()) == (5, 7, [0, 2])
    assert (second.request, second.replicate, second.token.tolist()) == (3, 1, [1, 1])
    assert second.kind.tolist() == [0, 1]


def test_optional_arrays_may_be_absent_and_q_rows_unknown() -> None:
    arrays = good()
    arrays["q"][1] = np.nan
    assert np.isnan(from_arrays(arrays)[1].q[0]).all()
    for name in ("q", "k", "kind", "draft", "round"):
        del arrays[name]
    assert from_arrays(arrays)[0].q is None


def spoil(name: str, value: Any) -> dict[str, Any]:
    arrays = good()
    if value is None:
        del arrays[name]
    elif callable(value):
        arrays[name] = value(arrays[name])
    else:
        arrays[name] = value
    return arrays


def put(row: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(a: np.ndarray) -> np.ndarray:
        a = a.copy()
        a[row] = value
        return a

    return change


@pytest.mark.parametrize(
    ("name", "value", "field", "says"),
    [
        ("p", None, "p", "missing"),
        ("request", None, "request", "missing"),
        ("p", np.full(4, 0.25), "p", "shape"),
        ("p", np.full((4, 4), 1), "p", "int64"),
        ("p", np.zeros((0, 4)), "p", "no rows"),
        ("p", put(2, np.nan), "p[2]", "NaN"),
        ("p", put((1, 0), 0.3), "p[1]", "does not sum"),
        ("p", put(3, [1.5, -0.5, 0, 0]), "p[3]", "negative"),
        ("q", put((0, 1), np.nan), "q[0]", "NaN"),
        ("q", np.full((4, 3), 1 / 3), "q", "shape of p"),
        ("token", put(1, 4), "token[1]", "range"),
        ("token", put(1, -1), "token[1]", "range"),
        ("token", np.array([0.0, 1, 2, 3]), "token", "float64"),
        ("token", np.array([0, 1]), "token", "one entry per row"),
        ("kind", put(0, 3), "kind[0]", "range"),
        ("draft", put(0, -2), "draft[0]", "range"),
        ("prompt", put(0, 1), "prompt", "changes within"),
    ],
)
def test_bad_arrays_name_field_and_remedy(name: str, value: Any, field: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        from_arrays(spoil(name, value))
    assert caught.value.field == field
    assert caught.value.remedy


def test_a_row_off_by_less_than_a_thousandth_is_accepted() -> None:
    assert from_arrays(spoil("p", put((1, 0), 0.2505)))


@pytest.mark.parametrize(
    "fields",
    [
        {"p": np.ones((3, 4), np.float32)},
        {"q": np.ones((2, 3), np.float32)},
        {"k": np.zeros(3, int)},
        {"token": np.array([0, 4])},
    ],
)
def test_request_evidence_checks_its_shapes(fields: dict[str, Any]) -> None:
    base = {"token": np.array([0, 1]), "p": np.full((2, 4), 0.25, np.float32)}
    with pytest.raises(InputError):
        RequestEvidence(0, 0, 0, **{**base, **fields})
