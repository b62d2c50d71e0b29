"""Every member is a betting score: its expectation under p is at most 1, given any past."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.stats import families
from gatekeeper.core.stats.learned import Learned
from gatekeeper.core.stats.rows import Rows, reduce_rows

NODES, WEIGHTS = np.polynomial.legendre.leggauss(4)


def distribution(rng: np.random.Generator, V: int, sharp: float, zeros: float) -> np.ndarray:
    logits = sharp * rng.standard_normal(V)
    p = np.exp(logits - logits.max())
    p[rng.random(V) < zeros] = 0
    p[rng.integers(V)] += 1e-3
    return (p / p.sum()).astype(np.float32)


def rows_of(
    p: np.ndarray,
    q: np.ndarray | None,
    token: np.ndarray,
    *,
    bonus: bool,
    k: int,
    learned: Learned,
    envelope: bool,
) -> Rows:
    """One row per entry of ``token``, all with the same p, q and past."""
    n = len(token)
    V = len(p)
    seen = np.zeros(V, dtype=int)
    seen[: V // 3] = 1
    seen[V // 3 : V // 2] = 2
    mass = np.array([p[seen == b].sum() for b in range(3)], dtype=float)
    bits = ((np.arange(V)[:, None] >> np.arange(3)) & 1).astype(np.float32)
    return reduce_rows(
        token,
        np.repeat(p[None], n, axis=0),
        None if q is None else np.repeat(q[None], n, axis=0),
        np.full(n, k),
        np.full(n, bonus),
        repeat=(seen[token], np.repeat(mass[None], n, axis=0)),
        id_weights=learned.id_weights,
        bits=bits,
        end_tokens=(0,),
        envelope=envelope,
    )


def every_factor(
    p: np.ndarray,
    q: np.ndarray | None,
    previous: np.ndarray,
    alt: np.ndarray,
    *,
    bonus: bool,
    k: int,
    learned: Learned,
    lag: float,
    envelope: bool = False,
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names, factors f [V, M] for every possible token (averaged over v), deviations [V, M]."""
    V = len(p)
    token = np.arange(V)
    rows = rows_of(p, q, token, bonus=bonus, k=k, learned=learned, envelope=envelope)
    fixed = families.join(
        families.tilts(rows),
        families.mixtures(rows, previous.astype(float), bonus_only=False),
        families.mixtures(rows, previous.astype(float), bonus_only=True),
        families.named(rows),
        learned.factors(rows),
        families.duplicate(rows, alt),
        families.support(rows, families.SUPPORT_RATE),
    )
    uniform = []
    for node in NODES:
        v = np.full(V, (node + 1) / 2)
        u = rows.below + v * rows.p_x
        uniform.append(
            families.join(families.pit(rows, v), families.serial(u, {"lag": np.full(V, lag)}))
        )
    averaged = sum(w / 2 * part.f for w, part in zip(WEIGHTS, uniform, strict=True))
    return (
        fixed.names + uniform[0].names,
        np.concatenate([fixed.f, averaged], axis=1),
        np.concatenate([fixed.dev, uniform[0].dev], axis=1),
    )


def trained(rng: np.random.Generator, V: int, p: np.ndarray, q: np.ndarray | None) -> Learned:
    learned = Learned(V)
    for _ in range(3):
        token = rng.integers(0, V, 20)
        rows = rows_of(
            p, q, token, bonus=bool(rng.integers(2)), k=2, learned=learned, envelope=False
        )
        learned.update(rows, np.repeat(p[None], 20, axis=0))
    return learned


CASES = {
    "seed": st.integers(0, 2**32 - 1),
    "V": st.integers(2, 60),
    "sharp": st.floats(0.1, 5),
    "zeros": st.sampled_from([0.0, 0.0, 0.5]),
    "bonus": st.booleans(),
    "with_q": st.booleans(),
    "lag": st.floats(0, 1),
}


def case(seed: int, V: int, sharp: float, zeros: float, *, with_q: bool) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    p, previous = distribution(rng, V, sharp, zeros), distribution(rng, V, sharp, zeros)
    q = distribution(rng, V, sharp, zeros / 2) if with_q else None
    alt = np.bincount(rng.integers(0, V, 3), minlength=V) / 3
    return rng, p, q, previous, alt, trained(rng, V, p, q)


@settings(max_examples=150, deadline=None)
@given(**CASES)
def test_every_factor_has_expectation_at_most_one(
    *, seed: int, V: int, sharp: float, zeros: float, bonus: bool, with_q: bool, lag: float
) -> None:
    _, p, q, previous, alt, learned = case(seed, V, sharp, zeros, with_q=with_q)
    names, f, _ = every_factor(p, q, previous, alt, bonus=bonus, k=1, learned=learned, lag=lag)
    mean = p.astype(float) @ f / p.astype(float).sum()
    assert np.all(f >= 0)
    assert np.all(mean <= 1 + 2e-5), [n for n, m in zip(names, mean, strict=True) if m > 1 + 2e-5]


@settings(max_examples=80, deadline=None)
@given(**{k: v for k, v in CASES.items() if k != "zeros"})
def test_the_expectation_is_exactly_one_where_p_has_full_support(
    *, seed: int, V: int, sharp: float, bonus: bool, with_q: bool, lag: float
) -> None:
    _, p, q, previous, alt, learned = case(seed, V, sharp, 0.0, with_q=with_q)
    names, f, _ = every_factor(p, q, previous, alt, bonus=bonus, k=1, learned=learned, lag=lag)
    mean = p.astype(float) @ f / p.astype(float).sum()
    below = [n for n, m in zip(names, mean, strict=True) if abs(m - 1) > 2e-5]
    assert all(name.startswith("outside the support") for name in below)


@settings(max_examples=150, deadline=None)
@given(delta=st.floats(1e-3, 0.4), **CASES)
def test_the_envelope_keeps_a_supermartingale_for_every_p_within_delta(
    *,
    seed: int,
    V: int,
    sharp: float,
    zeros: float,
    bonus: bool,
    with_q: bool,
    lag: float,
    delta: float,
) -> None:
    rng, p, q, previous, alt, learned = case(seed, V, sharp, zeros, with_q=with_q)
    names, f, dev = every_factor(
        p, q, previous, alt, bonus=bonus, k=1, learned=learned, lag=lag, envelope=True
    )
    widened = f / (1 + np.expm1(delta) * dev)
    exact = p.astype(float) / p.astype(float).sum()
    for column in range(f.shape[1]):
        # The worst p' raises what f favours and lowers the rest, then is rescaled into the band.
        for shift in (np.sign(f[:, column] - 1), rng.uniform(-1, 1, V)):
            other = exact * np.exp(delta / 2 * shift)
            other /= other.sum()
            inside = exact > 0
            assert np.abs(np.log(other[inside] / exact[inside])).max() <= delta + 1e-12
            assert other @ widened[:, column] <= 1 + 3e-5, names[column]


def test_the_learned_weights_actually_learn() -> None:
    rng = np.random.default_rng(0)
    V = 10
    p = np.full(V, 0.1, dtype=np.float32)
    learned = Learned(V)
    for _ in range(20):
        token = rng.integers(0, 2, 20)
        rows = rows_of(p, None, token, bonus=False, k=0, learned=learned, envelope=False)
        learned.update(rows, np.repeat(p[None], 20, axis=0))
    weights = learned.id_weights
    assert weights[0] == pytest.approx(5, rel=0.2)
    assert weights[9] < 0.1


def test_a_member_that_ignores_its_normaliser_would_be_caught() -> None:
    # The check above can fail: a tilt without its normaliser has another expectation.
    rng = np.random.default_rng(1)
    p = distribution(rng, 20, 2.0, 0.0)
    rows = rows_of(p, None, np.arange(20), bonus=False, k=0, learned=Learned(20), envelope=False)
    bare = families.tilts(rows).f[:, 0] * rows.z[:, 0]
    assert abs(float(p @ bare) - 1) > 0.01
