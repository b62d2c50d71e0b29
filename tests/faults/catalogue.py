"""The catalogue of planted faults: each is one wrong line of a sampler, behind a name.

Sources: the named faults of the statistics design, with its median tokens to detection (p and q,
alpha .001, gamma 4), and mechanisms from public reports on serving engines. Those of the second kind
that no distribution shows (length cap checked before stop, tokens after the end token, a streaming
parser that depends on chunking) are for the contract battery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from faults.markov import END, filtered, hashed, inverse, normalised, tempered
from faults.sampler import Sampler

if TYPE_CHECKING:
    from faults.markov import MarkovLM

    A = np.ndarray

DESIGN = "statistics design"
REPORTS = "public reports"
PURPOSES = ("draft", "accept", "residual", "bonus")


class GreedyMatch(Sampler):
    def chance(self, at: A, p: A, q: A, draft: A) -> A:
        return (draft == p.argmax(axis=1)).astype(float)


class AboveTenth(Sampler):
    def chance(self, at: A, p: A, q: A, draft: A) -> A:
        return (p[np.arange(len(draft)), draft] > 0.1).astype(float)


class Lenient(Sampler):
    def chance(self, at: A, p: A, q: A, draft: A) -> A:
        row = np.arange(len(draft))
        return 1.1 * p[row, draft] / q[row, draft]


class Unsubtracted(Sampler):
    def residual(self, p: A, q: A) -> A:
        return p


class AbsoluteResidual(Sampler):
    def residual(self, p: A, q: A) -> A:
        return np.abs(p - q)


class Unnormalised(Sampler):
    """The search for u in the cumulated residual runs off its end: the last id comes out."""

    def correct(self, at: A, p: A, q: A, k: int) -> A:
        c = np.cumsum(self.residual(p, q), axis=1, dtype=np.float64)
        found = (c <= self.uniform("residual", at, k)[:, None]).sum(axis=1)
        return np.minimum(found, self.lm.vocabulary - 1)


class CorrectionFromDraft(Sampler):
    def residual(self, p: A, q: A) -> A:
        return q


class BonusFromDraft(Sampler):
    def target_at_bonus(self, at: A, k: int) -> A:
        return self.lm.q[self.draft_view(at)]


class BonusStaleContext(Sampler):
    def target_at_bonus(self, at: A, k: int) -> A:
        return self.lm.p[self.before[at]]


class OffByOne(Sampler):
    """Every row is judged by the logits of the row before."""

    def view(self, at: A) -> A:
        return self.before[at]


class WrongTemperature(Sampler):
    """The draft is drawn at another temperature than the q that is returned says."""

    temperature = 0.7

    def pick(self, q: A, u: A) -> A:
        return inverse(tempered(q, self.temperature), u)


class UnfilteredAccept(Sampler):
    """Accepts by p before top-p, corrects by p after it."""

    def chance(self, at: A, p: A, q: A, draft: A) -> A:
        return super().chance(at, self.lm.unprocessed[self.view(at)], q, draft)


class UnmaskedBonus(Sampler):
    def target_at_bonus(self, at: A, k: int) -> A:
        return self.lm.unprocessed[self.view(at)]


class UniformForResidualToo(Sampler):
    """The number that refused the draft also picks the correction."""

    def uniform(self, purpose: str, at: A, k: int) -> A:
        if purpose == "accept":
            self.last = super().uniform(purpose, at, k)
        return self.last if purpose in {"accept", "residual"} else super().uniform(purpose, at, k)


class UniformForDraftToo(Sampler):
    """The number that picked the draft also accepts it."""

    def uniform(self, purpose: str, at: A, k: int) -> A:
        if purpose == "draft":
            self.last = super().uniform(purpose, at, k)
        return self.last if purpose in {"draft", "accept"} else super().uniform(purpose, at, k)


class ReseededEveryRound(Sampler):
    def __init__(self, lm: MarkovLM, rng: np.random.Generator, prompt: A, *, gamma: int) -> None:
        super().__init__(lm, rng, prompt, gamma=gamma)
        self.seed = rng.integers(0, 2**62, len(prompt))

    def uniform(self, purpose: str, at: A, k: int) -> A:
        return hashed(self.seed[at], k, PURPOSES.index(purpose))


class SameSeedPerPrompt(Sampler):
    """Requests of one prompt draw the same numbers."""

    def __init__(self, lm: MarkovLM, rng: np.random.Generator, prompt: A, *, gamma: int) -> None:
        super().__init__(lm, rng, prompt, gamma=gamma)
        self.key = int(rng.integers(0, 2**62))

    def seed(self, at: A) -> A:
        return self.prompt[at] + 1

    def uniform(self, purpose: str, at: A, k: int) -> A:
        return hashed(self.key, self.seed(at), self.number, k, PURPOSES.index(purpose))


class SeedIgnored(SameSeedPerPrompt):
    """Every request draws the same numbers, whatever seed it brings."""

    def seed(self, at: A) -> A:
        return np.zeros(len(at), dtype=np.int64)


class PenaltyOncePerStep(Sampler):
    """Penalties look at the text as it was when the round began, not at the window."""

    def begins(self, active: A) -> None:
        self.at_start = self.seen.copy()

    def history(self, at: A) -> A | None:
        return self.at_start[at]


class PenaltyIgnored(Sampler):
    def history(self, at: A) -> A | None:
        return None


class EndSuppressedInWindow(Sampler):
    def target(self, at: A, k: int) -> A:
        p = super().target(at, k).copy()
        p[:, END] = 0
        return normalised(p)

    def target_at_bonus(self, at: A, k: int) -> A:
        return Sampler.target(self, at, k)


class TypicalAcceptance(Sampler):
    """Medusa (Cai et al. 2024): the head's best token, p(d) > min(ε, δ exp(−H(p))), no residual."""

    def pick(self, q: A, u: A) -> A:
        return q.argmax(axis=1)

    def chance(self, at: A, p: A, q: A, draft: A) -> A:
        entropy = -(p * np.log(np.maximum(p, 1e-30))).sum(axis=1)
        limit = np.minimum(0.3, 0.09 * np.exp(-entropy))
        return (p[np.arange(len(draft)), draft] > limit).astype(float)

    def residual(self, p: A, q: A) -> A:
        return p


class ArgmaxDraft(Sampler):
    """A greedy draft judged as if it had been drawn from the soft q."""

    def pick(self, q: A, u: A) -> A:
        return q.argmax(axis=1)


class StaleTargetCache(Sampler):
    """From the second position of a round on, one entry of the target's cache is a round old."""

    def begins(self, active: A) -> None:
        self.old = self.a.copy()
        self.fresh = self.done.copy()

    def view(self, at: A) -> A:
        a = np.where(self.done[at] > self.fresh[at], self.old[at], self.a[at])
        return self.lm.context(a, self.b[at])


class RollbackKeepsRejected(Sampler):
    """The target's cache keeps the refused draft where the correction belongs."""

    def __init__(self, lm: MarkovLM, rng: np.random.Generator, prompt: A, *, gamma: int) -> None:
        super().__init__(lm, rng, prompt, gamma=gamma)
        self.cached_a, self.cached_b = self.a.copy(), self.b.copy()

    def view(self, at: A) -> A:
        return self.lm.context(self.cached_a[at], self.cached_b[at])

    def commits(self, at: A, draft: A, token: A) -> None:
        self.cached_a[at] = self.cached_b[at]
        self.cached_b[at] = np.where(draft >= 0, draft, token)


class StaleInNoDraftStep(Sampler):
    """Every third step has no draft, and then reads the state before the last accepted token."""

    def window(self) -> int:
        return 0 if self.number % 3 == 2 else self.gamma

    def target_at_bonus(self, at: A, k: int) -> A:
        return self.lm.p[self.before[at]] if k == 0 else super().target_at_bonus(at, k)


class FilteredDraft(Sampler):
    """The draft is drawn from processed logits, and the raw q is returned."""

    def pick(self, q: A, u: A) -> A:
        return inverse(filtered(tempered(q, 0.7), top_p=0.9), u)


class SettingsNotApplied(Sampler):
    """The target is sampled as if the request had asked for nothing."""

    def target(self, at: A, k: int) -> A:
        return self.lm.unprocessed[self.view(at)]


class BiasOnBonusOnly(Sampler):
    def target(self, at: A, k: int) -> A:
        return self.lm.unprocessed[self.view(at)]

    def target_at_bonus(self, at: A, k: int) -> A:
        return self.lm.p[self.view(at)]


class NanRows(Sampler):
    """One row in fifty is all NaN: no comparison holds, and the arg max of it is id 0."""

    def judge(self, at: A, p: A, q: A, draft: A, k: int) -> tuple[A, A]:
        accept, token = super().judge(at, p, q, draft, k)
        broken = self.rng.random(len(at)) < 1 / 50
        return accept & ~broken, np.where(broken, 0, token)


class Crossed(Sampler):
    """After a change of order, one step in eight, bonus tokens land in the neighbour's text."""

    def emit_bonus(self, at: A, k: int) -> A:
        token = super().emit_bonus(at, k)
        return np.roll(token, 1) if self.number % 8 == 7 else token


@dataclass(frozen=True)
class Fault:
    """One fault: its sampler, the ``setting`` it shows under, where it comes from.

    ``reference`` is the design's median tokens to detection, None where it gives none. ``strict``
    says that it must be found. ``replicates_only``: only tokens of second replicates can tell, and
    the reference counts those.
    """

    sampler: type[Sampler]
    reference: float | None = None
    setting: str = "plain"
    source: str = DESIGN
    replicates_only: bool = False


FAULTS = {
    "greedy_match_accept": Fault(GreedyMatch, 255),
    "accept_above_tenth": Fault(AboveTenth, 407),
    "residual_not_subtracted": Fault(Unsubtracted, 425),
    "absolute_residual": Fault(AbsoluteResidual, 150),
    "residual_not_renormalised": Fault(Unnormalised, 37),
    "correction_from_q": Fault(CorrectionFromDraft, 130),
    "bonus_from_q": Fault(BonusFromDraft, 852),
    "bonus_stale_context": Fault(BonusStaleContext, 12),
    "off_by_one_p": Fault(OffByOne, 5),
    "q_wrong_temperature": Fault(WrongTemperature, 752),
    "top_p_unfiltered_accept": Fault(UnfilteredAccept, 15, "top-p .8"),
    "top_k_missing_on_bonus": Fault(UnmaskedBonus, 80, "top-k 5"),
    "uniform_for_accept_and_residual": Fault(UniformForResidualToo, 2747),
    "uniform_for_draft_and_accept": Fault(UniformForDraftToo, 1347),
    "reseeded_every_round": Fault(ReseededEveryRound, 220),
    "same_seed_per_request": Fault(SameSeedPerPrompt, 7, replicates_only=True),
    "penalty_ignores_window": Fault(PenaltyOncePerStep, 5862, "presence penalty"),
    "end_suppressed_in_window": Fault(EndSuppressedInWindow, 7800, "end token"),
    "typical_acceptance": Fault(TypicalAcceptance, 57),
    "argmax_draft": Fault(ArgmaxDraft, 97),
    "stale_target_cache": Fault(StaleTargetCache, 10),
    "lenient": Fault(Lenient, 4160),
    "draft_from_processed_logits": Fault(FilteredDraft, source=REPORTS),
    "settings_not_applied": Fault(
        SettingsNotApplied, setting="temperature .7, top-p .9", source=REPORTS
    ),
    "nan_row_gives_a_token": Fault(NanRows, source=REPORTS),
    "tokens_cross_requests": Fault(Crossed, source=REPORTS),
    "seed_ignored": Fault(SeedIgnored, source=REPORTS, replicates_only=True),
    "penalty_ignored": Fault(PenaltyIgnored, setting="presence penalty", source=REPORTS),
    "bias_on_bonus_only": Fault(BiasOnBonusOnly, setting="bias", source=REPORTS),
    "bonus_without_grammar_mask": Fault(UnmaskedBonus, setting="grammar", source=REPORTS),
    "stale_state_in_no_draft_step": Fault(StaleInNoDraftStep, source=REPORTS),
    "rollback_keeps_rejected": Fault(RollbackKeepsRejected, source=REPORTS),
}
"""By name."""
