import numpy as np
import pytest

from gatekeeper.core.stats.eprocess import (
    GROUPS,
    MEMBERS,
    Bank,
    _share,
    bonus_by_index,
    cumulate,
    log10_e,
    log_e,
    member_groups,
    running_log_e,
    to_table,
)
from gatekeeper.core.stats.evidence import RequestEvidence
from gatekeeper.core.stats.families import EXACT_SUPPORT_RATE
from gatekeeper.errors import EvidenceError


def request(
    rng: np.random.Generator,
    *,
    n: int = 40,
    V: int = 12,
    number: int = 0,
    q: bool = True,
    token: np.ndarray | None = None,
) -> RequestEvidence:
    p = rng.dirichlet(np.ones(V), n).astype(np.float32)
    return RequestEvidence(
        prompt=0,
        replicate=number,
        request=number,
        token=rng.integers(0, V, n) if token is None else token,
        p=p,
        q=rng.dirichlet(np.ones(V), n).astype(np.float32) if q else None,
        k=np.arange(n) % 5,
        kind=np.where(np.arange(n) % 5 == 4, 2, 0),
    )


def window(e: RequestEvidence) -> np.ndarray:
    return bonus_by_index(e, 4, kind_is_past=False)


def test_weights_add_to_one_and_every_group_counts_the_same() -> None:
    assert float(log_e(np.zeros(len(MEMBERS)))) == pytest.approx(0, abs=1e-12)
    assert len(set(MEMBERS)) == len(MEMBERS)
    groups = member_groups()
    for group in GROUPS:
        lifted = np.array([np.log(2.0) if groups[m] == group else 0.0 for m in MEMBERS])
        assert float(np.exp(log_e(lifted))) == pytest.approx(1 + 1 / len(GROUPS))


def test_without_q_the_families_that_need_it_are_neutral() -> None:
    rng = np.random.default_rng(0)
    e = request(rng, q=False)
    log_f = Bank(12, seed=0).add(e, window(e)).log_f
    needing = [i for i, m in enumerate(MEMBERS) if "with q" in m or "q/p" in m or "residual" in m]
    assert len(needing) > 8
    assert np.abs(log_f[:, needing]).max() < 1e-9


def test_a_token_the_target_rules_out_stays_finite_and_only_support_takes_it() -> None:
    rng = np.random.default_rng(0)
    e = request(rng)
    e.p[5, e.token[5]] = 0
    e.p[5] /= e.p[5].sum()
    row = Bank(12, seed=0).add(e, window(e)).log_f[5]
    assert np.isfinite(row).all()
    by_name = dict(zip(MEMBERS, row, strict=True))
    assert by_name["outside the support, ε = 0.3"] == pytest.approx(np.log(0.7 + 30))
    assert by_name["mixture with q, ε = 0.3"] == pytest.approx(0)


@pytest.mark.parametrize("at", [5, 9])
def test_a_mask_missing_at_the_bonus_counts_there_alone(at: int) -> None:
    e = request(np.random.default_rng(0))
    e.p[at, e.token[at]] = 0
    e.p[at] /= e.p[at].sum()
    log_f = Bank(12, seed=0, support_rate=EXACT_SUPPORT_RATE).add(e, window(e)).log_f
    everywhere = log_f[:, MEMBERS.index("outside the support, ε = 0.3")]
    bonus = log_f[:, MEMBERS.index("outside the support at bonus, ε = 0.3")]
    most = np.log(0.7 + 0.3 / EXACT_SUPPORT_RATE)
    assert everywhere[at] == pytest.approx(most)
    assert bonus[at] == pytest.approx(most if e.k[at] == 4 else 0)
    others = np.delete(np.arange(len(bonus)), at)
    assert bonus[others] == pytest.approx(np.where(e.k[others] == 4, np.log(0.7), 0))
    # Where logits agree to rounding one such token is all but proof: 10^5 for this member.
    assert most > np.log(1e5)


def test_the_envelope_never_adds_evidence() -> None:
    rng = np.random.default_rng(3)
    e = request(rng)
    increments = Bank(12, seed=0, delta=0.05).add(e, window(e))
    assert (increments.log_f_envelope <= increments.log_f + 1e-12).all()
    assert increments.log_f_envelope.sum() < increments.log_f.sum() - 1


def test_a_tiny_envelope_is_charged_at_its_bound() -> None:
    e = request(np.random.default_rng(3))
    tiny = Bank(12, seed=0, delta=1e-6).add(e, window(e))
    assert tiny.log_f - tiny.log_f_envelope == pytest.approx(2e-6, rel=1e-3)
    # never less than what the exact deviation would take
    exact = Bank(12, seed=0, delta=2e-5).add(e, window(e))
    taken = (exact.log_f - exact.log_f_envelope) / 20
    assert (tiny.log_f - tiny.log_f_envelope >= taken - 1e-9).all()


def test_streaming_requests_equals_recomputing_from_the_table() -> None:
    rng = np.random.default_rng(1)
    bank = Bank(12, seed=0, delta=0.01)
    log_f, tables = [], []
    for i in range(4):
        e = request(rng, number=i)
        increments = bank.add(e, window(e))
        log_f.append(increments.log_f)
        tables.append(to_table(i, increments))
    import pandas as pd

    table = pd.concat(tables, ignore_index=True)
    ends = running_log_e(np.concatenate(log_f))[39::40]
    assert log_e(cumulate(table, envelope=False).to_numpy()) == pytest.approx(ends)
    assert log10_e(table, envelope=False) == pytest.approx(ends.max() / np.log(10))
    shuffled = table.sample(frac=1, random_state=0)
    assert log10_e(shuffled, envelope=False) == pytest.approx(log10_e(table, envelope=False))
    with pytest.raises(EvidenceError, match="every member"):
        log10_e(table.iloc[:-1], envelope=False)


def test_learning_uses_earlier_rows_only() -> None:
    # Changing the last token must not change any earlier factor.
    a, b = (request(np.random.default_rng(7), n=70) for _ in range(2))
    b.token[-1] = (b.token[-1] + 1) % 12
    first, second = (Bank(12, seed=0).add(e, window(e)).log_f for e in (a, b))
    assert np.array_equal(first[:-1], second[:-1])
    assert not np.array_equal(first[-1], second[-1])


def test_the_bank_learns_between_blocks() -> None:
    e = request(np.random.default_rng(7), n=96, token=np.full(96, 3))
    log_f = Bank(12, seed=0).add(e, window(e)).log_f[:, MEMBERS.index("learned token id")]
    assert np.abs(log_f[:32]).max() < 1e-6  # nothing is known yet
    assert log_f[64:].mean() > 0.5


def test_bonus_position_is_known_from_the_index() -> None:
    e = request(np.random.default_rng(0), n=12)
    assert window(e).tolist() == [i % 5 == 4 for i in range(12)]
    assert bonus_by_index(e, None, kind_is_past=True).tolist() == [i % 5 == 4 for i in range(12)]
    # Unknown gamma: the largest index so far, first rounds included.
    k = np.array([0, 1, 0, 1, 2, 0, 2, 1])
    grey = RequestEvidence(0, 0, 0, np.zeros(8, int), np.ones((8, 1), np.float32), k=k)
    assert bonus_by_index(grey, None, kind_is_past=False).tolist() == [
        False, True, False, True, True, False, True, False,
    ]  # fmt: skip
    bare = RequestEvidence(0, 0, 0, np.zeros(2, int), np.ones((2, 1), np.float32))
    assert not bonus_by_index(bare, None, kind_is_past=False).any()


def test_share_of_earlier_replicates_with_the_same_prefix() -> None:
    now = np.array([1, 2, 3, 4])
    share = _share(now, [np.array([1, 2, 9]), np.array([1, 2, 3, 4, 5]), np.array([7])])
    assert share[0] == pytest.approx(2 / 3)
    assert share[1] == pytest.approx(1)
    assert share[2] == pytest.approx(0.5)
    assert share[3] == pytest.approx(1)
    assert np.isnan(_share(now, [])).all()
    assert np.isnan(_share(now, [np.array([7, 2])])[1:]).all()


def test_an_empty_request_adds_nothing() -> None:
    e = RequestEvidence(0, 0, 0, np.zeros(0, int), np.zeros((0, 12), np.float32))
    assert Bank(12, seed=0).add(e, np.zeros(0, bool)).log_f.shape == (0, len(MEMBERS))
