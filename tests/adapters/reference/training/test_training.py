from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import write_tiny_llama

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.convert import describe  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.drafter import head_rows, read_drafter  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.loader import (  # noqa: E402 - as above
    Options,
    Switches,
    load_engine,
)
from gatekeeper_adapters.engines.reference.model import LlamaConfig  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.scoring import DenseLlama  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training import KINDS, pipeline  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training.checkpoint import (  # noqa: E402 - as above
    Checkpoint,
)
from gatekeeper_adapters.engines.reference.training.data import (  # noqa: E402 - as above
    Recipe,
    Recorder,
    sample,
    split,
)
from gatekeeper_adapters.engines.reference.training.distill import (  # noqa: E402 - as above
    Interrupted,
    Material,
    Settings,
    distill,
    steps_for,
)
from gatekeeper_adapters.engines.reference.training.evaluate import (  # noqa: E402 - as above
    acceptance,
    bigram_acceptance,
)
from gatekeeper_adapters.engines.reference.training.folder import (  # noqa: E402 - as above
    INT8,
    as_read,
    drafter_config,
    stored_tensors,
    write_folder,
)
from gatekeeper_adapters.engines.reference.training.goals import goals_of, line_up  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training.networks import UNREAD, Medusa, build  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training.texts import Text, read_texts  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training.vocabulary import (  # noqa: E402 - as above
    draft_vocabulary,
)

from gatekeeper.core.decoding import TokenPrompt  # noqa: E402 - as above
from gatekeeper.errors import Conflict, Incompatible  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE = Recipe(tokens=1000, batch=8, longest=24, open_share=0.2)


def prompts() -> list[TokenPrompt]:
    """Ten templates with two prompts each; ids as the suites have them."""
    return [
        TokenPrompt(f"part{t}-{n}", "tiny", tuple((7 * t + 3 * n + i) % 90 + 5 for i in range(6)))
        for t in range(10)
        for n in (1, 2)
    ]


def seconds() -> Callable[[], float]:
    ticks = iter(range(10**9))
    return lambda: float(next(ticks))


def heard() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append


def open_recorded(target: Path) -> tuple[Any, Recorder]:
    recorder = Recorder()
    options = Options(max_batch=8, max_context=64, switches=Switches(wrap=lambda _: recorder))
    engine = load_engine(target, {"kind": "ngram"}, version="test", options=options)
    return engine, recorder


@pytest.fixture(scope="module")
def four_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four") / "target"
    # tied, a random target repeats itself, and there is nothing to learn
    return write_tiny_llama(folder, num_hidden_layers=4, seed=3, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def texts(four_layers: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    engine, recorder = open_recorded(four_layers)
    out = tmp_path_factory.mktemp("texts") / "texts.safetensors"
    sample(engine, recorder, prompts(), RECIPE, out, note=lambda _: None, clock=seconds())
    return read_texts(out)


@pytest.fixture(scope="module")
def material(four_layers: Path, texts: list[Text]) -> Material:
    train = [text for text in texts if not text.held_out]
    ids = draft_vocabulary(train, 97, 80)
    _, head = head_rows(four_layers, ids, dtype=torch.float32, device="cpu")
    return Material(train, [t for t in texts if t.held_out and t.greedy], head, ids)


@pytest.fixture(scope="module")
def begin(four_layers: Path) -> Callable[..., Any]:
    from safetensors.torch import load_file

    config = LlamaConfig.read(json.loads((four_layers / "config.json").read_text()))
    assert config is not None
    tensors = load_file(four_layers / "model.safetensors")

    def make(kind: str) -> Any:
        return build(kind, config, tensors, layers=(0, 3), heads=3)

    return make


def test_sampled_states_are_the_targets_own(four_layers: Path, texts: list[Text]) -> None:
    from gatekeeper_adapters.engines.reference.model import load_llama

    weights = load_llama(four_layers, dtype=torch.float32, device="cpu")
    assert weights is not None
    dense = DenseLlama(weights)
    _, head = head_rows(four_layers, None, dtype=torch.float32, device="cpu")
    for text in (texts[0], texts[-1]):
        logits = dense.logits(text.tokens[:-1].tolist(), len(text.states))
        torch.testing.assert_close(text.states @ head.T, logits, rtol=1e-3, atol=1e-3)
        if text.greedy:
            answer = text.tokens[text.first :]
            assert torch.equal(logits[text.first - 1 :].argmax(-1), answer)


def test_no_template_is_in_both_parts(texts: list[Text]) -> None:
    train, held = split(prompts())
    names = [{prompt.id.split("-")[0] for prompt in part} for part in (train, held)]
    assert len(names[1]) == 2
    assert not names[0] & names[1]
    assert {text.prompt for text in texts if text.held_out} == {prompt.id for prompt in held}
    trained = sum(len(text.tokens) - text.first for text in texts if not text.held_out)
    assert RECIPE.tokens <= trained < RECIPE.tokens + RECIPE.batch * RECIPE.longest
    assert {text.greedy for text in texts if not text.held_out} == {True, False}


def test_interrupted_sampling_goes_on_where_it_stopped(
    four_layers: Path, texts: list[Text], tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        if len(lines) == 5:
            raise Stopped

    out = tmp_path / "texts.safetensors"
    engine, recorder = open_recorded(four_layers)
    with pytest.raises(Stopped):
        sample(engine, recorder, prompts(), RECIPE, out, note=stop, clock=seconds())
    kept = sorted((tmp_path / "texts.safetensors.waves").iterdir())
    assert len(kept) == 5
    assert not out.exists()
    kept[0].touch()
    engine, recorder = open_recorded(four_layers)
    steps: list[int] = []
    step = engine.step
    engine.step = lambda: (steps.append(1), step())[1]
    sample(engine, recorder, prompts(), RECIPE, out, note=lines.append, clock=seconds())
    again = read_texts(out)
    assert [text.tokens.tolist() for text in again] == [text.tokens.tolist() for text in texts]
    assert all(torch.equal(a.states, b.states) for a, b in zip(again, texts, strict=True))
    assert list(tmp_path.iterdir()) == [out]
    assert "left" in lines[-2]


def test_the_vocabulary_is_what_was_said_and_then_low_ids() -> None:
    text = Text(
        "x", torch.tensor([9, 9, 9, 4, 4, 7]), torch.zeros(5, 2), 1, greedy=True, held_out=False
    )
    assert draft_vocabulary([text], 12, 2).tolist() == [4, 9]
    assert draft_vocabulary([text], 12, 5).tolist() == [0, 1, 4, 7, 9]
    assert draft_vocabulary([text], 12, 99).tolist() == list(range(12))


def test_goals_name_the_likeliest_rows_and_a_lineup_has_them_all(material: Material) -> None:
    text = material.train[0]
    head = torch.randn(5000, material.head.shape[1], generator=torch.Generator().manual_seed(1))
    goals = goals_of(text, head)
    assert goals.rows.shape == (len(text.rows(1)), 12)
    shares = (text.states[text.first :].float() @ head.T).softmax(-1)
    torch.testing.assert_close(goals.shares, shares.gather(1, goals.rows))
    torch.testing.assert_close(goals.shares, shares.topk(12).values)
    lineup = line_up([goals], head, torch.Generator().manual_seed(0))
    assert 12 <= len(lineup.head) < len(head)
    assert torch.equal(lineup.head[lineup.place[goals.rows]], head[goals.rows])
    wide = lineup.spread(goals)
    torch.testing.assert_close(wide.sum(-1), goals.shares.sum(-1))
    assert torch.equal(wide.argmax(-1), lineup.place[goals.rows[:, 0]])


def test_a_whole_text_is_learned_from_its_second_token_on(texts: list[Text]) -> None:
    text = texts[0]
    assert text.first > 1
    assert text.whole().rows(1) == range(1, len(text.tokens) - 1)
    assert text.whole().tokens is text.tokens


def ring() -> Material:
    """Texts that count on around a ring of 20; states that name the next token, in too few numbers
    for a linear map to turn them on.
    """
    head = torch.randn(20, 8, generator=torch.Generator().manual_seed(5))
    texts = []
    for start in range(20):
        tokens = (start + torch.arange(14)) % 20
        texts.append(
            Text("ring", tokens, 2 * head[tokens[1:]], 3, greedy=True, held_out=start % 4 == 0)
        )
    train, held = ([text for text in texts if text.held_out is part] for part in (False, True))
    return Material(train, held, head, torch.arange(20))


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_acceptance_rises(
    kind: str, begin: Callable[..., Any], material: Material, tmp_path: Path
) -> None:
    network = begin(kind)
    if kind == "medusa":  # the random target's state says nothing of the token after the next
        material = ring()
        network = Medusa(material.head, 3)
    # tiny, and seconds to learn in
    network.lesson = replace(network.lesson, learning_rate=3e-3, batch=4)
    untaught = acceptance(network, material.held_out, material.head, material.ids, depth=1)
    lines, note = heard()
    run = distill(
        network,
        material,
        Settings(steps=36, noise=0.02),
        Checkpoint(tmp_path / "c", kind),
        note=note,
        clock=seconds(),
    )
    (first,), last = untaught.conditional, run.curve[-1].acceptance
    assert first is not None
    assert last is not None
    assert last > first, (first, [point.acceptance for point in run.curve])
    losses = [point.loss for point in run.curve[1:]]
    assert losses[-1] < losses[0]
    assert "left" in lines[1]
    assert [point.step for point in run.curve] == list(range(0, 37, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_engine_reads_is_what_was_judged(
    kind: str, begin: Callable[..., Any], material: Material, four_layers: Path, tmp_path: Path
) -> None:
    network = begin(kind)
    document = json.loads((four_layers / "config.json").read_text())
    known = describe("file:x", four_layers)
    stored = stored_tensors(network, material.ids, int8=kind in INT8)
    config = drafter_config(kind, document, material.ids, tokenizer=known["tokenizer"], size=2)
    write_folder(tmp_path / "made", config, stored)
    section = describe("file:made", tmp_path / "made")
    assert section["tokenizer"] == known["tokenizer"]
    assert section["vocab_size"] == len(material.ids)
    assert section["token_map"] == config["token_map"]
    assert section["padding_ids"] == []
    drafter = read_drafter(tmp_path / "made", dtype=torch.float32, device="cpu")
    assert drafter.ids is not None
    assert torch.equal(drafter.ids, material.ids)
    judged = as_read(stored)
    assert drafter.tensors.keys() == judged.keys() == network.exported().keys()
    for name, value in network.exported().items():
        assert torch.equal(drafter.tensors[name], judged[name])
        error = 2**-8 if kind not in INT8 or value.ndim == 1 else 1 / 254
        assert (judged[name] - value).abs().max() <= error * value.abs().max() * 1.001


def test_medusas_heads_are_exported_over_states_as_they_are(
    begin: Callable[..., Any], material: Material
) -> None:
    network, text = begin("medusa"), material.held_out[0]
    network.begin(material.train)
    assert not torch.equal(network.sizes, torch.ones(32))
    learned = network(text, 3)
    network.adopt(network.exported())
    for before, after in zip(learned, network(text, 3), strict=True):
        torch.testing.assert_close(after, before)


def test_of_an_mlp_the_neurons_stay_that_do_most(four_layers: Path, material: Material) -> None:
    from safetensors.torch import load_file

    config = LlamaConfig.read(json.loads((four_layers / "config.json").read_text()))
    assert config is not None
    tensors = load_file(four_layers / "model.safetensors")
    silent = torch.arange(0, 48, 3)
    for layer in (0, 3):
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"][:, silent] = 0
    whole, thin = (
        build("draft_lm", config, tensors, layers=(0, 3), heads=3, neurons=neurons)
        for neurons in (None, 32)
    )
    assert thin.exported()["model.layers.1.mlp.gate_proj.weight"].shape == (32, 32)
    text = material.held_out[0]
    torch.testing.assert_close(thin(text, 1)[0], whole(text, 1)[0])
    with pytest.raises(Incompatible, match=r"neurons=49: .*use at most 48"):
        build("draft_lm", config, tensors, layers=(0, 3), heads=3, neurons=49)


def test_a_draft_lm_learns_with_words_that_it_does_not_read(
    begin: Callable[..., Any], material: Material
) -> None:
    network, text = begin("draft_lm"), material.held_out[0]
    quiet = torch.full(text.states.shape, -0.1)
    (read,) = network(text, 1)
    (same,) = network(text, 1, quiet)
    assert torch.equal(same, read)
    place = text.first + 2
    quiet[place, 0] = 0.1
    (other,) = network(text, 1, quiet)
    assert torch.equal(other[:2], read[:2])  # row 0 has read up to `first`
    assert not torch.isclose(other[2:], read[2:]).all(dim=-1).any()
    noise = torch.rand(100_000, 1).mul_(2).sub_(1)
    unread = (noise >= (1 - 2 * UNREAD) * noise.amax()).float().mean()
    assert abs(float(unread) - UNREAD) < 0.01


def lesson(kind: str, begin: Any, material: Material, path: Path, **changes: Any) -> Any:
    network = begin(kind)
    settings = replace(Settings(steps=6), **changes)
    distill(
        network, material, settings, Checkpoint(path, kind), note=lambda _: None, clock=seconds()
    )
    return network.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_ends_with_the_bits_of_one_that_was_not(
    kind: str,
    begin: Callable[..., Any],
    material: Material,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = lesson(kind, begin, material, tmp_path / "whole")
    from gatekeeper_adapters.engines.reference.training import distill as module

    real, calls = module._step, []

    def step(*arguments: Any) -> float:
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(module, "_step", step)
    with pytest.raises(Interrupted):
        lesson(kind, begin, material, tmp_path / "parts")
    assert len(calls) == 4
    resumed = lesson(kind, begin, material, tmp_path / "parts")
    assert len(calls) == 6
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    with pytest.raises(Conflict, match="other settings"):
        Checkpoint(tmp_path / "parts", "another").steps()
    other = lesson(kind, begin, material, tmp_path / "other", seed=1)
    assert not all(torch.equal(other[name], value) for name, value in whole.items())


def test_effort_is_counted_in_seconds(begin: Callable[..., Any], material: Material) -> None:
    # every reading of this clock is a second later: so the goals and each of 13 evaluations cost one,
    # and a step an eighth
    steps = steps_for(begin("medusa"), material, Settings(0), seconds=100.0, clock=seconds())
    assert steps == (100 - 1 - 13) * 8


def test_windows_are_counted_while_they_are_right() -> None:
    tokens = torch.tensor([5, 1, 2, 3, 1, 2, 4])
    text = Text("x", tokens, torch.zeros(6, 2), 1, greedy=True, held_out=True)
    found = bigram_acceptance([text], [text], vocab_size=9, depth=3)
    # 2 is followed by 3 and by 4 as often: the lower id is said, and the last place is wrong
    assert found.reached == (5, 4, 3)
    assert found.accepted == (4, 3, 2)
    assert found.conditional == (4 / 5, 3 / 4, 2 / 3)


class Scripted:
    """Says at each depth what it is told, through a head of one row per id."""

    def __init__(self, *said: list[int]) -> None:
        self.said = said

    def __call__(self, text: Text, depth: int) -> list[Any]:
        return [torch.eye(9)[row] for row in self.said[:depth]]


def test_a_later_depth_counts_only_after_the_earlier_was_right() -> None:
    text = Text(
        "x", torch.tensor([5, 1, 2, 3, 4]), torch.zeros(4, 9), 1, greedy=True, held_out=True
    )
    network: Any = Scripted([2, 0, 4], [3, 4])
    found = acceptance(network, [text], torch.eye(9), torch.arange(9), depth=3)
    assert (found.reached, found.accepted) == ((3, 1, 0), (2, 1, 0))
    assert found.conditional == (2 / 3, 1.0, None)


def order(kind: str) -> pipeline.Order:
    return pipeline.Order(kind, "file:target", steps=3, rows=60, layers=(0, 3), recipe=RECIPE)


KILLED = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from test_training import order
    from gatekeeper_adapters.engines.reference.training.pipeline import train_drafter

    def note(line):
        if line.startswith("step 2/3"):
            os.kill(os.getpid(), 9)

    train_drafter(
        order("eagle"), Path(sys.argv[2]), Path(sys.argv[3]), note=note, clock=time.process_time
    )
    """
)


def test_a_killed_command_is_resumed_bit_for_bit(
    four_layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "workload_prompts", lambda engine, recipe: prompts())
    lines, note = heard()
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def run(out: Path) -> pipeline.Outcome:
        return pipeline.train_drafter(
            order("eagle"), four_layers, out, note=note, clock=time.process_time
        )

    outcome = run(whole)
    here = Path(__file__).parent
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(here), str(four_layers), str(parts)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[2]), *sys.path[1:]])},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "parts.checkpoint").is_file()
    assert not parts.exists()
    lines.clear()
    resumed = run(parts)
    assert [line.split()[:2] for line in lines[1:]] == [["step", "3/3"]]
    assert resumed.drafter == outcome.drafter
    a, b = ((out / "model.safetensors").read_bytes() for out in (whole, parts))
    assert a == b
    made = [json.loads((out / "config.json").read_text())["provenance"] for out in (whole, parts)]
    assert made[0]["curve"] == made[1]["curve"]
    assert [point["step"] for point in made[1]["curve"]] == [0, 1, 2, 3]
    assert made[1]["held_out"]["bigram_conditional_acceptance"] == list(outcome.bigram.conditional)
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"whole", "parts", "texts"}
    with pytest.raises(Conflict, match="exists"):
        run(parts)
