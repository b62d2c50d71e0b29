"""The drafter's packed forward against the plain formula, and what its loader refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_drafters import TRIMMED, write_tiny_eagle, write_tiny_medusa
from tiny_models import write_tiny_llama

from gatekeeper.errors import Incompatible

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from dense_eagle import DenseEagle  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.drafter import Lender  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.eagle_net import load_eagle  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.packing import Segment, pack  # noqa: E402 - as above


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(
        tmp_path_factory.mktemp("eagle") / "target", tie_word_embeddings=False, seed=3
    )


@pytest.fixture(scope="module")
def drafter(target: Path) -> Path:
    return write_tiny_eagle(target.parent / "trimmed", target, ids=TRIMMED, own=1.0)


@pytest.fixture(scope="module")
def load(target: Path) -> Callable[..., Any]:
    def make(folder: Path, lender: Lender | None = None, **options: Any) -> Any:
        sizes = {"dtype": torch.float32, "device": "cpu", "slots": 4, "positions": 64, **options}
        return load_eagle(folder, lender or Lender(target, 97), **sizes)

    return make


def text(count: int, seed: int = 0) -> tuple[list[int], Any]:
    """Tokens [count] and states [count − 1, H] of all but the last."""
    rng = np.random.default_rng(seed)
    states = torch.from_numpy(rng.normal(size=(count - 1, 32)).astype(np.float32)) * 3
    return rng.integers(0, 97, count).tolist(), states


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("ids", [None, TRIMMED])
def test_ragged_sequences_in_pieces_equal_the_formula(
    ids: Any, invariant: Any, load: Any, target: Path, tmp_path: Path
) -> None:
    folder = write_tiny_eagle(tmp_path / "eagle", target, ids=ids, own=1.0)
    net, dense = load(folder, invariant=invariant), DenseEagle(folder, target)
    texts = {slot: text(size, slot) for slot, size in ((3, 40), (0, 7), (1, 23))}
    cuts = {3: (0, 16, 33, 39), 0: (0, 2, 3, 6), 1: (0, 1, 21, 22)}
    for piece in range(3):
        segments, states = [], []
        for slot, (tokens, known) in texts.items():
            first, last = cuts[slot][piece : piece + 2]
            wanted = last - first if piece != 1 else 1
            segments.append(Segment(slot, first, tokens[first + 1 : last + 1], wanted))
            states.append(known[first:last])
        logits, guessed = net.forward(net.pack(segments), torch.cat(states))
        row = 0
        for segment in segments:
            tokens, known = texts[segment.slot]
            last = segment.start + len(segment.tokens)
            wanted_logits, wanted_states = dense.read(tokens[1 : last + 1], known[:last])
            mine = slice(row, row + segment.wanted)
            torch.testing.assert_close(
                logits[mine], wanted_logits[-segment.wanted :], atol=1e-4, rtol=1e-4
            )
            torch.testing.assert_close(
                guessed[mine], wanted_states[-segment.wanted :], atol=1e-4, rtol=1e-4
            )
            row += segment.wanted
    assert logits.dtype == torch.float32
    assert logits.shape == (39 - 33 + 6 - 3 + 22 - 21, 97 if ids is None else len(TRIMMED))


def test_rows_that_nobody_wants_leave_the_same_keys_and_values(load: Any, drafter: Path) -> None:
    tokens, states = text(30)
    silent, speaking = load(drafter), load(drafter)
    batch = silent.pack([Segment(1, 0, tokens[1:], 0)])
    assert not batch.spans  # and attend to nothing
    logits, guessed = silent.forward(batch, states)
    assert (logits.shape, guessed.shape) == ((0, len(TRIMMED)), (0, 32))
    speaking.forward(speaking.pack([Segment(1, 0, tokens[1:], 29)]), states)
    assert torch.equal(silent.cache.buffer, speaking.cache.buffer)
    assert float(silent.cache.buffer[0, :, 1, 28].abs().min()) > 0


@pytest.mark.parametrize("invariant", [False, True])
def test_a_tree_read_level_by_level_equals_each_of_its_paths(
    invariant: Any, load: Any, drafter: Path, target: Path
) -> None:
    dense = DenseEagle(drafter, target)
    net = load(drafter, invariant=invariant)
    tokens, states = text(12)
    other, known = text(9, 5)
    levels = [[(-1, 5), (-1, 6), (-1, 7)], [(2, 8), (0, 9)], [(4, 10)]]
    segments = [Segment(1, 0, tokens[1:], 1), Segment(2, 0, other[1:], 1)]
    _, root = net.forward(net.pack(segments), torch.cat((states, known)))
    parents: list[int] = []
    names: list[int] = []
    guesses: list[Any] = []
    for level in levels:
        start = 11 + len(names)
        parents += [parent for parent, _ in level]
        names += [name for _, name in level]
        above = [root[0] if parent < 0 else guesses[parent] for parent, _ in level]
        segments = [
            Segment(1, start, [name for _, name in level], len(level), tuple(parents)),
            Segment(2, 8, [50], 1),  # a sequence without branches shares the step
        ]
        logits, found = net.forward(net.pack(segments), torch.stack([*above, root[1]]))
        guesses += found[:-1]
        for place, logit in enumerate(logits[:-1], start=len(names) - len(level)):
            path = [place]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            wanted = dense.after(tokens, states, [names[node] for node in path])
            torch.testing.assert_close(logit, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            logits[-1], dense.after(other, known, [50]), atol=1e-4, rtol=1e-4
        )


def test_spans_of_wanted_rows_are_numbered_among_themselves(load: Any, drafter: Path) -> None:
    cache = load(drafter).cache
    segments = [Segment(0, 3, [1, 2, 3], 1), Segment(1, 2, [4, 5], 1), Segment(3, 0, [6, 7], 2)]
    batch = pack(segments, cache, wanted_only=True)
    spans = [(s.slot, s.sequences, s.first, s.count, s.context) for s in batch.spans]
    assert spans == [(0, 2, 0, 1, 6), (3, 1, 2, 2, 2)]
    assert batch.rows.tolist() == [2, 4, 5, 6]


def test_the_targets_own_tables_are_not_counted_and_copies_are(
    load: Any, target: Path, drafter: Path, tmp_path: Path
) -> None:
    from gatekeeper_adapters.engines.reference.model import load_llama

    weights = load_llama(target, dtype=torch.float32, device="cpu")
    assert weights is not None
    own = Lender(target, 97, weights.embed, weights.head)
    embed = 97 * 32 * 4
    shared, copied = load(drafter, own), load(drafter)
    assert shared.weights.embed is weights.embed
    assert copied.weight_bytes - shared.weight_bytes == embed
    everything = write_tiny_eagle(tmp_path / "all", target)
    whole = load(everything, own)
    assert whole.weights.head is weights.head
    assert load(everything).weight_bytes - whole.weight_bytes == embed + weights.head.bytes
    assert shared.weight_bytes - whole.weight_bytes == shared.weights.head.bytes
    parts = 2 * 32 * 32 + 32 * 32 + (32 + 2 * 16) * 32 + 3 * 32 * 48
    assert whole.weight_bytes >= 4 * parts
    assert shared.cache.bytes == 2 * 4 * 64 * 2 * 8 * 4


def change(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_what_is_no_such_drafter_is_refused(load: Any, target: Path, tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="GatekeeperEagle") as refused:
        load(write_tiny_medusa(tmp_path / "medusa", target))
    assert refused.value.field == "proposer.source"
    scaled = write_tiny_eagle(tmp_path / "scaled", target)
    change(scaled, rope_parameters={"rope_type": "yarn", "factor": 2.0})
    with pytest.raises(Incompatible, match="plain rotary"):
        load(scaled)
    narrow = write_tiny_eagle(tmp_path / "narrow", target)
    change(narrow, intermediate_size=40)
    with pytest.raises(Incompatible, match="gate_proj") as refused:
        load(narrow)
    assert "train" in str(refused.value.remedy)
    small = write_tiny_llama(tmp_path / "small", hidden_size=16, head_dim=4)
    with pytest.raises(Incompatible, match="states of size 16"):
        load(write_tiny_eagle(tmp_path / "wide", target), Lender(small, 97))
