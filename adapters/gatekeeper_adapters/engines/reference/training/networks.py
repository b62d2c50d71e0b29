"""The three drafters as networks that learn, in the names and shapes of their files.

Each speaks through the target's own embedding and head rows, which are no part of it. ``forward``
gives, for every depth, states whose product with the head rows are the draft's logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding, silu

from gatekeeper.errors import Incompatible
from gatekeeper_adapters.engines.reference.training.least_squares import ridge
from gatekeeper_adapters.engines.reference.training.llama_layer import LlamaBlock, Memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.model import LlamaConfig
    from gatekeeper_adapters.engines.reference.training.texts import Text

__all__ = ["DraftLm", "Eagle", "Lesson", "Medusa", "Network", "build"]

FALLING = 0.8
"""Weight of each Medusa head against the one before; Cai et al., Medusa, arXiv:2401.10774."""

RIDGE = 1e-3
"""Weight of the ridge in ``begin``."""

UNREAD = 0.15
"""Share of the words that a draft_lm does not get to read at a step: few texts are soon known by heart."""

SCALE_TEXTS = 20
"""Texts from which the scale of a draft's own states is taken."""


@dataclass(frozen=True)
class Lesson:
    """How a kind learns: ``weights`` of the loss at each depth, ``regression`` of its states.

    ``batch`` texts make a step: fewer of them, and the same minutes hold more steps.
    ``weight_decay`` is AdamW's.
    Where ``drawn`` every step teaches as many of the depths as it draws, from the first on.
    """

    learning_rate: float
    weights: tuple[float, ...]
    regression: float = 0.0
    drawn: bool = False
    batch: int = 6
    weight_decay: float = 0.01


class Network(nn.Module, ABC):  # type: ignore[misc] # torch is not followed, see pyproject
    """A drafter that learns. ``embed`` [V, H] is the target's and frozen."""

    lesson: Lesson

    def __init__(self, embed: Tensor) -> None:
        super().__init__()
        self.embed = embed  # a plain attribute: neither a parameter nor in the state

    @abstractmethod
    def forward(self, text: Text, depths: int, noise: Tensor | None = None) -> list[Tensor]:
        """States [len(text.rows(d)), H] for each depth d; fewer depths where the text is short.

        A network that drafts from text alone gives depth 1 only: at depth d it says the same. What
        the network reads is disturbed by ``noise`` [n − 1, H], uniform around 0: it is added to the
        target's states, or says which words go unread.
        """

    @abstractmethod
    def begin(self, texts: Sequence[Text]) -> None:
        """Set what least squares can set from the texts, before the first step."""

    def exported(self) -> dict[str, Tensor]:
        """The weights by the names of the file."""
        weights: dict[str, Tensor] = self.state_dict()
        return weights

    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights as a file has them."""
        self.load_state_dict(weights)

    def read(self, tokens: Tensor) -> Tensor:
        """Embeddings of tokens, float32."""
        return embedding(tokens, self.embed).float()


class DraftLm(Network):
    """A small language model of some of the target's layers."""

    lesson = Lesson(learning_rate=1e-3, weights=(1.0,), batch=3, weight_decay=0.1)

    def __init__(self, config: LlamaConfig, embed: Tensor, layers: int, intermediate: int) -> None:
        super().__init__(embed)
        self.model = nn.ModuleDict(
            {
                "layers": nn.ModuleList(LlamaBlock(config, intermediate) for _ in range(layers)),
                "norm": nn.RMSNorm(config.hidden, config.eps),
            }
        )

    def forward(self, text: Text, depths: int, noise: Tensor | None = None) -> list[Tensor]:
        """Depth 1, from the tokens alone."""
        del depths
        x = self.read(text.tokens[:-1])
        if noise is not None:
            x = x * (noise[:, :1] < (1 - 2 * UNREAD) * noise.amax())
        blocks = list(self.model["layers"])
        for number, block in enumerate(blocks, start=1):
            x, _ = block(x, 0, asked=text.first if number == len(blocks) else 0)
        return [self.model["norm"](x)]

    def begin(self, texts: Sequence[Text]) -> None:
        """The last matrix maps what it reads onto the target's states.

        Layers taken from far apart do not speak of the same thing: as they are, their text is
        guessed worse than by chance.
        """
        *earlier, last = self.model["layers"]

        def halves(text: Text) -> tuple[Tensor, Tensor]:
            x = self.read(text.tokens[:-1])
            for block in earlier:
                x, _ = block(x, 0)
            x, _ = last.attended(x, 0, asked=text.first)
            return x, last.activations(x)

        with torch.no_grad():
            # the final norm takes any scale out again; its own size keeps what attention adds alive
            scale = (
                torch.cat([halves(text)[0] for text in texts[:SCALE_TEXTS]]).square().mean().sqrt()
            )

            def pieces() -> Iterator[tuple[Tensor, Tensor]]:
                for text in texts:
                    x, activations = halves(text)
                    yield activations, scale * self.unnormed(text) - x

            last.mlp["down_proj"].weight.copy_(ridge(pieces(), weight=RIDGE))

    def unnormed(self, text: Text) -> Tensor:
        """The target's states before the weights of its final norm: rows of mean square 1."""
        wanted: Tensor = text.states[text.first :].float() / self.model["norm"].weight
        return wanted


class Medusa(Network):
    """Head k guesses the token k + 2 after the state it reads: s_k = O_k (h + silu(W_k h + b_k)).

    silu is never below −0.28, so without O_k a head could add to what the state says of the token
    between, but not take it back. O_k times the target's head is a head of its own, as in the paper.
    While they learn, the W_k read h over ``sizes``, and their columns are the file's times these.
    """

    sizes: Tensor

    def __init__(self, embed: Tensor, heads: int) -> None:
        super().__init__(embed)
        hidden = embed.shape[1]
        # heads share nothing: the first, on which all windows depend, may learn more often
        weights = tuple(FALLING**k for k in range(heads))
        self.lesson = Lesson(learning_rate=1e-3, weights=weights, drawn=True)
        self.register_buffer("sizes", torch.ones(hidden))
        self.heads = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(heads))
        self.outs = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(heads))
        for head, out in zip(self.heads, self.outs, strict=True):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            nn.init.eye_(out.weight)

    def forward(self, text: Text, depths: int, noise: Tensor | None = None) -> list[Tensor]:
        """Head d − 1 reads the state d rows before."""
        states = text.states.float() if noise is None else text.states.float() + noise
        found = []
        pairs = zip(self.heads, self.outs, strict=True)
        for depth, (head, out) in enumerate(list(pairs)[:depths], start=1):
            rows = text.rows(depth)
            if not rows:
                break
            h = states[rows.start - depth : rows.stop - depth]
            found.append(out(h + silu(head(h / self.sizes))))
        return found

    def begin(self, texts: Sequence[Text]) -> None:
        """Each O_k maps its state onto the one it is to stand for; silu adds nothing yet."""
        self.sizes.copy_(sizes_of([text.states[text.first - 1 :].float() for text in texts]))
        for depth, out in enumerate(self.outs, start=1):
            pieces = (self._reached(text, depth) for text in texts if text.rows(depth))
            with torch.no_grad():
                out.weight.copy_(ridge(pieces, weight=RIDGE))

    def exported(self) -> dict[str, Tensor]:
        """The heads over states as they are."""
        weights = {name: value for name, value in self.state_dict().items() if name != "sizes"}
        read = {f"heads.{k}.weight" for k in range(len(self.heads))}
        return {
            name: value / self.sizes if name in read else value for name, value in weights.items()
        }

    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Take heads over states as they are."""
        self.load_state_dict({**weights, "sizes": torch.ones_like(self.sizes)})

    def _reached(self, text: Text, depth: int) -> tuple[Tensor, Tensor]:
        """Rows of a state, and the state ``depth`` rows on."""
        rows, states = text.rows(depth), text.states.float()
        return states[rows.start - depth : rows.stop - depth], states[rows.start :]


class Eagle(Network):
    """One layer over pairs of a token and the state before it; Li et al., EAGLE, arXiv:2401.15077.

    Beyond depth 1 it reads its own states in place of the target's, and learns to (EAGLE-3,
    arXiv:2503.01840).
    """

    lesson = Lesson(learning_rate=2e-4, weights=(1.0, 0.6))

    def __init__(self, config: LlamaConfig, embed: Tensor, intermediate: int) -> None:
        super().__init__(embed)
        hidden = config.hidden
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.norm_embed = nn.RMSNorm(hidden, config.eps)
        self.norm_state = nn.RMSNorm(hidden, config.eps)
        self.model = nn.ModuleDict({"layers": nn.ModuleList([LlamaBlock(config, intermediate)])})
        self.norm = nn.RMSNorm(hidden, config.eps)

    def begin(self, texts: Sequence[Text]) -> None:
        """``fc`` alone guesses the next state; the layer adds nothing yet.

        The norms bring every number that it reads to the same size: a few of a state are ten times
        the rest, and steps of one size for all weights would be those few's.
        """
        (block,) = self.model["layers"]

        def read(text: Text) -> tuple[Tensor, Tensor]:
            rows = text.rows(1)
            words = self.norm_embed(self.read(text.tokens[rows.start : rows.stop]))
            return words, self.norm_state(text.states[rows.start - 1 : rows.stop - 1].float())

        def pieces() -> Iterator[tuple[Tensor, Tensor]]:
            for text in texts:
                yield torch.cat(read(text), dim=-1), text.states[text.first :] / self.norm.weight

        with torch.no_grad():
            for norm, parts in (
                (self.norm_embed, [read(text)[0] for text in texts]),
                (self.norm_state, [read(text)[1] for text in texts]),
            ):
                norm.weight.div_(sizes_of(parts))
            self.fc.weight.copy_(ridge(pieces(), weight=RIDGE))
            block.self_attn["o_proj"].weight.zero_()
            block.mlp["down_proj"].weight.zero_()

    def forward(self, text: Text, depths: int, noise: Tensor | None = None) -> list[Tensor]:
        """Depth 1 reads the target's states; each further depth the states of the one before."""
        states = text.states.float() if noise is None else text.states.float() + noise
        embedded = self.norm_embed(self.read(text.tokens[:-1]))
        (block,) = self.model["layers"]
        # pairs begin at position 1: token 0 has no state before it
        x = self.fc(torch.cat((embedded[1:], self.norm_state(states[:-1])), dim=-1))
        x, own = block(x, 1, asked=text.first - 1)
        found = [self.norm(x)]
        memory: Memory = (own,)
        for depth in range(2, depths + 1):
            rows = text.rows(depth)
            if not rows:
                break
            pair = torch.cat((embedded[rows.start :], self.norm_state(found[-1][:-1])), dim=-1)
            x, own = block(self.fc(pair), rows.start, memory=memory)
            memory = (*memory, own)
            found.append(self.norm(x))
        return found


def sizes_of(parts: Sequence[Tensor]) -> Tensor:
    """Root mean square [H] of every number of rows [n, H]."""
    return torch.cat(list(parts)).square().mean(dim=0).sqrt()


def build(
    kind: str,
    config: LlamaConfig,
    target: Mapping[str, Tensor],
    *,
    layers: Sequence[int],
    heads: int,
    neurons: int | None = None,
) -> Network:
    """A drafter before its first lesson, begun from the target's own weights.

    ``target`` holds embedding, final norm and the named layers. draft_lm takes ``layers``, and of
    their MLPs the ``neurons`` strongest (None: all); eagle takes the last of them; what eagle has
    beside a layer hands the state on and is set by ``begin``.

    Raises:
        Incompatible: the target lacks a layer, or has fewer neurons.
    """
    embed = target["model.embed_tokens.weight"]
    if kind == "medusa":
        return Medusa(embed, heads)
    if not all(0 <= layer < config.layers for layer in layers):
        raise Incompatible(
            "has no such layer",
            field="layers",
            value=list(layers),
            remedy=f"use numbers from 0 to {config.layers - 1}",
        )
    norm = target["model.norm.weight"].float()
    intermediate = len(target[f"model.layers.{layers[-1]}.mlp.gate_proj.weight"])
    if kind == "draft_lm":
        kept = intermediate if neurons is None else neurons
        if kept > intermediate:
            raise Incompatible(
                "is more than the target's layers have",
                field="neurons",
                value=kept,
                remedy=f"use at most {intermediate}",
            )
        draft = DraftLm(config, embed, len(layers), kept)
        begun = {**_thinned(_layers_of(target, layers), kept), "model.norm.weight": norm}
        draft.load_state_dict(begun)
        return draft
    eagle = Eagle(config, embed, intermediate)
    ones = torch.ones(config.hidden)
    begun = {
        "fc.weight": torch.cat(
            (torch.zeros(config.hidden, config.hidden), torch.eye(config.hidden)), 1
        ),
        "norm_embed.weight": ones,
        "norm_state.weight": ones,
        "norm.weight": norm,
    }
    eagle.load_state_dict({**_layers_of(target, layers[-1:]), **begun})
    return eagle


def _layers_of(target: Mapping[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
    found = {}
    for new, old in enumerate(layers):
        prefix = f"model.layers.{old}."
        for name, value in target.items():
            if name.startswith(prefix):
                found[f"model.layers.{new}.{name.removeprefix(prefix)}"] = value.float()
    return found


def _thinned(layers: Mapping[str, Tensor], kept: int) -> dict[str, Tensor]:
    """Each MLP's neurons with the largest product of what they read by and what they write."""
    found = dict(layers)
    for name, down in layers.items():
        if not name.endswith("mlp.down_proj.weight"):
            continue
        gate, up = (name.replace("down_proj", part) for part in ("gate_proj", "up_proj"))
        strength = down.norm(dim=0) * layers[gate].norm(dim=1) * layers[up].norm(dim=1)
        strongest = strength.topk(kept).indices.sort().values
        found[name] = down[:, strongest]
        found[gate], found[up] = layers[gate][strongest], layers[up][strongest]
    return found
