"""Sample the text that drafters learn from, with the engine that will serve them.

Text of the target itself, not of people: a drafter has to guess what this model says. Every wave of
requests is written when it is done, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from gatekeeper import workloads
from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings, TokenPrompt
from gatekeeper.errors import InputError
from gatekeeper_adapters.engines.reference.proposers.base import Proposer
from gatekeeper_adapters.engines.reference.training.texts import Text, read_texts, write_texts
from gatekeeper_adapters.engines.reference.tree import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from gatekeeper.protocols import Engine
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = [
    "Recipe",
    "Recorder",
    "sample",
    "split",
    "template",
    "workload_prompts",
]

OPENING = "<|im_start|>user\n"
"""The target also invents questions of its own: text far wider than any suite of prompts.

Xu et al., Magpie, arXiv:2406.08464.
"""

HELD_OUT_SHARE = 0.2
_SHARED_PARTS = {"tool_calls": 1, "long_context": 2}
"""How many parts of an id name what several prompts of a slice share."""

FEWEST_TOKENS = 4
"""Answers shorter than this teach nothing and are left out."""


@dataclass(frozen=True)
class Recipe:
    """What is sampled: about ``tokens`` training tokens, ``batch`` requests at a time.

    Greedy once for every prompt, then at ``temperature`` round after round, ``open_share`` of the
    prompts there being ``OPENING`` alone. ``longest`` bounds an answer, ``longest_prompt`` a prompt,
    ``longest_repeated`` one that is read again in every round; of a prompt the last ``context``
    tokens are kept with their states.

    Below 1 the temperature keeps the text near the one that drafts are judged on, which is greedy.
    """

    tokens: int = 60_000
    seed: int = 0
    batch: int = 32
    longest: int = 128
    longest_prompt: int = 1024
    longest_repeated: int = 256
    context: int = 256
    open_share: float = 0.6
    temperature: float = 0.8


def template(prompt: TokenPrompt) -> str:
    """What a prompt shares with others: tool and rows, or document; else its id without a number."""
    parts = _SHARED_PARTS.get(prompt.slice)
    if parts is None:
        return re.sub(r"-\d+$", "", prompt.id)
    return "-".join(prompt.id.split("-")[:parts])


def split(prompts: Sequence[TokenPrompt]) -> tuple[list[TokenPrompt], list[TokenPrompt]]:
    """Training and held-out prompts, so that no template is in both.

    Of every slice the fifth of its templates whose sha256 is lowest is held out, at least one: a
    prompt more or less in another slice moves none.
    """
    train: list[TokenPrompt] = []
    held: list[TokenPrompt] = []
    for name in dict.fromkeys(prompt.slice for prompt in prompts):
        of_slice = [prompt for prompt in prompts if prompt.slice == name]
        ranked = sorted(
            {template(prompt) for prompt in of_slice},
            key=lambda each: hashlib.sha256(each.encode()).digest(),
        )
        apart = ranked[: max(1, round(HELD_OUT_SHARE * len(ranked)))]
        for prompt in of_slice:
            (held if template(prompt) in apart else train).append(prompt)
    return train, held


def workload_prompts(engine: Engine, recipe: Recipe) -> list[TokenPrompt]:
    """Every prompt of every slice that is short enough, as the target's tokens."""
    longest = min(recipe.longest_prompt, engine.info.max_context - recipe.longest - 1)
    return [
        prompt
        for name in workloads.SLICES
        for prompt in workloads.tokenised(name, engine.tokenize, max_tokens=longest)
    ]


class Recorder(Proposer):
    """Proposes nothing and keeps what it learns: the target's states, at no extra forward."""

    name = "recorder"
    reads_states = True

    def __init__(self) -> None:
        self._states: dict[str, list[Tensor]] = {}

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Nothing for anyone."""
        return [NOTHING] * len(windows)

    def learn(self, sequence: Seq, start: int, states: Tensor) -> None:
        """Keep the states; ``start`` follows from what came before."""
        del start
        self._states.setdefault(sequence.id, []).append(states.clone())

    def take(self, request_id: str) -> Tensor:
        """The states [n, H] of a request's text, once."""
        return torch.cat(self._states.pop(request_id))


def sample(
    engine: Engine,
    recorder: Recorder,
    prompts: Sequence[TokenPrompt],
    recipe: Recipe,
    out: Path,
    *,
    note: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    """Sample texts into the new file ``out``; waves of an earlier sitting beside it are used.

    ``engine`` runs with ``recorder`` as its proposer; ``clock`` counts CPU seconds.

    Raises:
        InputError: the prompts leave nothing to train on or nothing to hold out.
    """
    document = json.dumps(asdict(recipe), sort_keys=True)
    train, held = split(prompts)
    if not train or not held:
        raise InputError(
            "leave nothing to train on, or nothing to hold out",
            field="prompts",
            value=len(prompts),
            remedy="give prompts of at least two templates",
        )
    opening = TokenPrompt("opening", "open", engine.tokenize(OPENING))
    waves = out.with_name(f"{out.name}.waves")
    waves.mkdir(parents=True, exist_ok=True)
    texts: list[Text] = []
    begun, fresh = clock(), 0
    for number, requests in enumerate(_waves(train, held, opening, engine.info.end_tokens, recipe)):
        path = waves / f"{number:05d}.safetensors"
        if path.is_file():
            texts += read_texts(path)
        else:
            new = _run_wave(engine, recorder, requests, recipe)
            if new:
                write_texts(new, path, document)
            texts += new
            fresh += _trained(new)
        done = _trained(texts)
        if done >= recipe.tokens:
            break
        rate = fresh / max(clock() - begun, 1e-9)
        left = f", about {(recipe.tokens - done) / rate / 60:.1f} CPU-min left" if fresh else ""
        note(f"sampled {done} of {recipe.tokens} training tokens{left}")
    write_texts(texts, out, document)
    shutil.rmtree(waves)
    note(f"sampled {_trained(texts)} training tokens in {len(texts)} texts")


@dataclass(frozen=True)
class _Ask:
    prompt: TokenPrompt
    request: DecodeRequest
    held_out: bool


def _waves(
    train: Sequence[TokenPrompt],
    held: Sequence[TokenPrompt],
    opening: TokenPrompt,
    end_tokens: tuple[int, ...],
    recipe: Recipe,
) -> Iterator[list[_Ask]]:
    """Endless: held-out prompts greedily, training prompts greedily, then rounds that draw."""

    def ask(prompt: TokenPrompt, turn: int, *, held_out: bool = False) -> _Ask:
        return _Ask(
            prompt,
            DecodeRequest(
                request_id=f"{prompt.id}/{turn}",
                prompt=prompt.tokens,
                max_tokens=recipe.longest,
                sampling=SamplingSettings(temperature=recipe.temperature) if turn else GREEDY,
                seed=recipe.seed + turn,
                gamma=1,  # or the engine would not ask the recorder
                end_tokens=() if prompt is opening else end_tokens,
            ),
            held_out,
        )

    def cut(asks: Sequence[_Ask]) -> Iterator[list[_Ask]]:
        for start in range(0, len(asks), recipe.batch):
            yield list(asks[start : start + recipe.batch])

    yield from cut([ask(prompt, 0, held_out=True) for prompt in held])
    yield from cut([ask(prompt, 0) for prompt in train])
    again = [prompt for prompt in train if len(prompt.tokens) <= recipe.longest_repeated]
    opened = max(1, round(recipe.open_share / (1 - recipe.open_share) * len(again)))
    turn = 0
    while True:
        asks = [ask(prompt, turn + 1) for prompt in again]
        asks += [ask(opening, turn * opened + number + 1) for number in range(opened)]
        turn += 1
        yield from cut(asks)


def _run_wave(
    engine: Engine, recorder: Recorder, asks: Sequence[_Ask], recipe: Recipe
) -> list[Text]:
    said: dict[str, list[int]] = {ask.request.request_id: [] for ask in asks}
    waiting = set(said)
    for ask in asks:
        engine.submit(ask.request)
    while waiting:
        result = engine.step()
        for emission in result.emitted:
            said[emission.request_id].extend(emission.tokens)
        waiting -= {end.request_id for end in result.finished}
    texts = []
    for ask in asks:
        answer, states = said[ask.request.request_id], recorder.take(ask.request.request_id)
        if len(answer) < FEWEST_TOKENS:
            continue
        start = max(0, len(ask.prompt.tokens) - recipe.context)
        tokens = torch.tensor([*ask.prompt.tokens[start:], *answer])
        texts.append(
            Text(
                prompt=ask.prompt.id,
                tokens=tokens,
                states=states[start : start + len(tokens) - 1],
                first=len(ask.prompt.tokens) - start,
                greedy=ask.request.sampling.greedy,
                held_out=ask.held_out,
            )
        )
    return texts


def _trained(texts: Sequence[Text]) -> int:
    return sum(len(text.tokens) - text.first for text in texts if not text.held_out)
