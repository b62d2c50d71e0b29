import itertools
from typing import Any

import numpy as np
import pytest

from gatekeeper.core.stats.rows import (
    RANK_EDGES,
    RATIO_EDGES,
    RATIO_LIMIT,
    THETAS,
    _largest,
    recent,
    reduce_rows,
)


@pytest.fixture
def block() -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    n, V = 7, 90
    p = rng.dirichlet(np.full(V, 0.3), n).astype(np.float32)
    q = rng.dirichlet(np.full(V, 0.3), n).astype(np.float32)
    q[3] = np.nan
    p[2, 10:14] = p[2, 20] = 0.1  # ties
    p[2] /= p[2].sum()
    token = rng.integers(0, V, n)
    token[2] = 12
    bits = rng.integers(0, 2, (V, 3)).astype(np.float32)
    weights = rng.random(V).astype(np.float32)
    k = np.arange(n) % 3
    repeat = recent(token, k, p)
    rows = reduce_rows(
        token, p, q, k, k == 2, repeat=repeat, id_weights=weights, bits=bits, envelope=True
    )
    return token, p.astype(float), q.astype(float), bits, weights, rows


def test_ranks_and_masses_agree_with_a_sort(block: Any) -> None:
    token, p, _, _, _, rows = block
    for i in range(len(token)):
        order = np.lexsort((np.arange(p.shape[1]), -p[i]))
        rank = int(np.flatnonzero(order == token[i])[0])
        assert rows.rank[i] == rank
        assert rows.above[i] == pytest.approx(p[i][order[:rank]].sum(), abs=1e-6)
        assert rows.below[i] == pytest.approx(p[i][: token[i]].sum(), abs=1e-6)
        edges = [*RANK_EDGES, p.shape[1]]
        masses = [p[i][order[a:b]].sum() for a, b in itertools.pairwise(edges)]
        assert rows.rank_mass[i] == pytest.approx(masses, abs=1e-6)
        assert edges[rows.rank_bin[i]] <= rank < edges[rows.rank_bin[i] + 1]


def test_moments_and_deviations_agree_with_the_formula(block: Any) -> None:
    _, p, _, _, weights, rows = block
    for j, theta in enumerate(THETAS):
        w = np.where(p > 0, np.maximum(p, 1e-37) ** theta, 0)
        z = (p * w).sum(axis=1)
        assert rows.z[:, j] == pytest.approx(z, rel=1e-4)
        assert rows.z_dev[:, j] == pytest.approx(
            (p * np.abs(w / z[:, None] - 1)).sum(axis=1), rel=1e-3
        )
    assert rows.id_z == pytest.approx(p @ weights, rel=1e-5)


def test_quantities_of_q_agree_with_the_formula_and_unknown_rows_are_neutral(block: Any) -> None:
    _, p, q, _, _, rows = block
    assert rows.has_q.tolist() == [True, True, True, False, True, True, True]
    for i in np.flatnonzero(rows.has_q):
        ratio = np.clip(np.log(q[i]) - np.log(p[i]), -RATIO_LIMIT, RATIO_LIMIT)
        bins = np.searchsorted(RATIO_EDGES, ratio)
        masses = [p[i][bins == b].sum() for b in range(len(RATIO_EDGES) + 1)]
        assert rows.ratio_mass[i] == pytest.approx(masses, abs=1e-5)
        assert rows.beta[i] == pytest.approx(np.minimum(p[i], q[i]).sum(), abs=1e-6)
        best = q[i].argmax()
        assert rows.draft_arg_max_p[i] == pytest.approx(p[i, best], rel=1e-5)
    assert rows.beta[3] == pytest.approx(1, abs=1e-6)
    assert rows.ratio[3] == 0


def test_features_of_p(block: Any) -> None:
    _, p, _, bits, _, rows = block
    assert rows.head_mass == pytest.approx(np.where(p >= 0.1, p, 0).sum(axis=1), abs=1e-6)
    assert rows.tail_mass == pytest.approx(np.where(p < 0.01, p, 0).sum(axis=1), abs=1e-6)
    assert rows.bits_mass == pytest.approx(p @ bits, abs=1e-5)


def test_recent_agrees_with_sets() -> None:
    rng = np.random.default_rng(2)
    n, V = 80, 25
    token = rng.integers(0, V, n)
    k = np.minimum(np.arange(n) % 5, np.arange(n))
    p = rng.dirichlet(np.ones(V), n).astype(np.float32)
    which, mass = recent(token, k, p)
    for i in range(n):
        here = set(token[i - k[i] : i].tolist())
        before = set(token[max(0, i - 32) : i].tolist()) - here
        expected = 2 if token[i] in here else 1 if token[i] in before else 0
        assert which[i] == expected
        assert mass[i, 2] == pytest.approx(p[i, sorted(here)].sum(), abs=1e-6)
        assert mass[i, 1] == pytest.approx(p[i, sorted(before)].sum(), abs=1e-6)
        assert mass[i].sum() == pytest.approx(1, abs=1e-6)


def test_chunks_of_rows_do_not_change_the_answer(
    monkeypatch: pytest.MonkeyPatch, block: Any
) -> None:
    token, p, q, bits, weights, rows = block
    monkeypatch.setattr("gatekeeper.core.stats.rows._CHUNK", 1)
    k = np.arange(len(token)) % 3
    p32 = p.astype(np.float32)
    again = reduce_rows(
        token,
        p32,
        q.astype(np.float32),
        k,
        k == 2,
        repeat=recent(token, k, p32),
        id_weights=weights,
        bits=bits,
        envelope=True,
    )
    assert again.z == pytest.approx(rows.z, rel=1e-6)
    assert again.rank.tolist() == rows.rank.tolist()


def test_rows_that_sum_to_nearly_one_are_rescaled() -> None:
    rng = np.random.default_rng(6)
    p, q = (rng.dirichlet(np.ones(40), 3).astype(np.float32) for _ in range(2))
    token, k = np.array([1, 2, 3]), np.zeros(3, dtype=np.int64)

    def reduced(scale: float) -> Any:
        return reduce_rows(
            token,
            p * np.float32(scale),
            q * np.float32(scale),
            k,
            k == 1,
            repeat=recent(token, k, p),
            id_weights=np.ones(40, dtype=np.float32),
            bits=np.ones((40, 1), dtype=np.float32),
        )

    exact, rescaled = reduced(1.0), reduced(0.9992)
    assert rescaled.p_x == pytest.approx(exact.p_x, rel=1e-5)
    assert rescaled.z == pytest.approx(exact.z, rel=1e-5)
    assert rescaled.rank_mass.sum(axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    assert rescaled.beta == pytest.approx(exact.beta, rel=1e-5)


@pytest.mark.parametrize("kind", ["dense", "masked", "tied", "one-hot", "peaks in one block"])
def test_the_largest_of_a_long_row_are_those_of_a_sort(kind: str) -> None:
    rng = np.random.default_rng(9)
    p = rng.dirichlet(np.full(9000, 0.1), 3).astype(np.float32)
    if kind == "masked":
        p[p < np.sort(p, axis=1)[:, [-20]]] = 0
    elif kind == "tied":
        p[:] = 1 / 9000
    elif kind == "one-hot":
        p = np.eye(9000, dtype=np.float32)[[0, 4000, 8999]]
    elif kind == "peaks in one block":
        p = np.sort(p, axis=1)
    assert (_largest(p, 32) == -np.sort(-p, axis=1)[:, :32]).all()
