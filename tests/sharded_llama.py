"""A Llama forward in plain matrix products: any dtype, any KV dtype, split over ranks.

Written apart from the engine's, whose kernels fix how numbers are rounded: here each of the three is
a switch. Heads, and the inner rows of the MLP, are split over the ranks of a group; what a rank
computes of a layer's output is summed over all of them, twice a layer, as Megatron does (Shoeybi et
al., arXiv:1909.08053, section 3). A rank by itself is run by ``python sharded_llama.py JOB``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gatekeeper_adapters.engines.reference.drafter import read_tensors
from gatekeeper_adapters.engines.reference.model import LlamaConfig
from torch.nn.functional import rms_norm, silu, softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

__all__ = ["Format", "ShardedLlama", "decode", "run_ranks"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LIMIT_S = 240
"""Longest life of a rank: a peer that died must not leave the other waiting."""


@dataclass(frozen=True)
class Format:
    """How numbers are held and summed: ``dtype`` of weights and states, ``kv``, ``ranks``."""

    dtype: str
    kv: str
    ranks: int = 1

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.dtype}, KV {self.kv}, tensor parallel {self.ranks}"


def _alone(partial: Tensor) -> Tensor:
    return partial


class ShardedLlama:
    """One rank's part of a model; ``reduce`` adds a partial result over all ranks."""

    def __init__(
        self,
        folder: Path,
        form: Format,
        *,
        rank: int = 0,
        reduce: Callable[[Tensor], Tensor] = _alone,
    ) -> None:
        config = LlamaConfig.read(json.loads((folder / "config.json").read_text()))
        assert config is not None
        assert config.kv_heads % form.ranks == 0
        self.config, self._reduce = config, reduce
        self._kv = DTYPES[form.kv]
        kind = DTYPES[form.dtype]
        self._raw = {name: t.to(kind) for name, t in read_tensors(folder).items()}
        self._part = (rank, form.ranks)
        self.cache: list[tuple[Tensor, Tensor]] = []
        self.clear()

    def clear(self) -> None:
        """Forget the text."""
        c = self.config
        empty = torch.zeros(0, c.kv_heads // self._part[1], c.head_dim, dtype=self._kv)
        self.cache = [(empty, empty) for _ in range(c.layers)]

    def rewind(self, length: int) -> None:
        """Forget all positions from ``length`` on."""
        self.cache = [(k[:length], v[:length]) for k, v in self.cache]

    def forward(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens to the text; float32 logits [n, V] after each of them."""
        c = self.config
        start, n = len(self.cache[0][0]), len(tokens)
        x = self._raw["model.embed_tokens.weight"][torch.tensor(list(tokens))]
        turn = _turns(c, start, n)
        for layer in range(c.layers):
            at = f"model.layers.{layer}."
            seen = rms_norm(x, (c.hidden,), self._raw[f"{at}input_layernorm.weight"], c.eps)
            x = x + self._reduce(self._attention(seen, layer, turn))
            seen = rms_norm(
                x, (c.hidden,), self._raw[f"{at}post_attention_layernorm.weight"], c.eps
            )
            gate = silu(seen @ self._rows(f"{at}mlp.gate_proj").T)
            up = seen @ self._rows(f"{at}mlp.up_proj").T
            x = x + self._reduce((gate * up) @ self._columns(f"{at}mlp.down_proj").T)
        seen = rms_norm(x, (c.hidden,), self._raw["model.norm.weight"], c.eps)
        head = self._raw.get("lm_head.weight", self._raw["model.embed_tokens.weight"])
        return (seen @ head.T).float()

    def _attention(self, x: Tensor, layer: int, turn: Tensor) -> Tensor:
        c, at, n = self.config, f"model.layers.{layer}.self_attn.", len(x)
        q, k, v = (
            (x @ self._rows(f"{at}{name}_proj").T).view(n, -1, c.head_dim)
            for name in ("q", "k", "v")
        )
        q, k = _turned(q, turn), _turned(k, turn)
        keys, values = (
            torch.cat((old, new.to(self._kv)))
            for old, new in zip(self.cache[layer], (k, v), strict=True)
        )
        self.cache[layer] = (keys, values)
        groups = c.heads // c.kv_heads
        keys, values = (t.to(x.dtype).repeat_interleave(groups, dim=1) for t in (keys, values))
        scores = torch.einsum("nhd,thd->hnt", q, keys).float() * c.head_dim**-0.5
        place = torch.arange(len(keys))
        hidden = place > place[-n:, None]
        weights = softmax(scores.masked_fill(hidden, -torch.inf), dim=-1).to(x.dtype)
        mixed = torch.einsum("hnt,thd->nhd", weights, values).reshape(n, -1)
        return mixed @ self._columns(f"{at}o_proj").T

    def _rows(self, name: str) -> Tensor:
        """This rank's outputs of a matrix."""
        rank, ranks = self._part
        return self._raw[f"{name}.weight"].chunk(ranks)[rank]

    def _columns(self, name: str) -> Tensor:
        """This rank's inputs of a matrix."""
        rank, ranks = self._part
        return self._raw[f"{name}.weight"].chunk(ranks, dim=1)[rank]


def _turns(c: LlamaConfig, start: int, count: int) -> Tensor:
    """Angles [count, d/2] of rotary embedding, float32."""
    exponent = torch.arange(0, c.head_dim, 2).float() / c.head_dim
    return torch.outer(torch.arange(start, start + count).float(), 1.0 / c.theta**exponent)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate ``x`` [n, heads, d]: element i pairs with i + d/2."""
    one, other = x.float().chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1).to(x.dtype)


def decode(
    model: ShardedLlama,
    prompt: Sequence[int],
    count: int,
    guesses: Sequence[int] = (),
    gamma: int = 0,
) -> tuple[list[int], Tensor]:
    """Greedy text of ``count`` tokens, and the logits [count, V] that chose them.

    Without guesses one row at a time. Else up to ``gamma`` of them, those at the text's next places,
    are verified at once, and the cache is rolled back behind the first wrong one.
    """
    model.clear()
    chosen = [model.forward(prompt)[-1:]]
    text = [int(chosen[0].argmax())]
    while len(text) < count:
        window = list(guesses[len(text) : len(text) + gamma])
        logits = model.forward([text[-1], *window])
        best = logits.argmax(dim=1).tolist()
        kept = next((i for i, token in enumerate(window) if token != best[i]), len(window))
        model.rewind(len(prompt) + len(text) + kept)
        text += best[: kept + 1]
        chosen.append(logits[: kept + 1])
    return text[:count], torch.cat(chosen)[:count]


def _guesses(text: Sequence[int], vocab: int) -> list[int]:
    """A text with every third token wrong: windows are accepted, cut and rejected in turn."""
    return [(token + 1) % vocab if i % 3 == 2 else token for i, token in enumerate(text)]


def judge(model: ShardedLlama, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
    """Logits [n, V] before each token of a given text, in one dense pass."""
    model.clear()
    return model.forward([*prompt, *text])[len(prompt) - 1 : -1]


def measure(model: ShardedLlama, job: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Texts and logits of every prompt: ordinary, in windows, and of the texts to judge."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    with torch.inference_mode():
        for i, prompt in enumerate(job["prompts"]):
            guesses: list[int] = []
            for name in ("ordinary", "windows"):
                text, logits = decode(model, prompt, job["tokens"], guesses, job["gamma"])
                guesses = _guesses(text, model.config.vocab_size)
                found[f"{name} text {i}"] = np.array(text)
                found[f"{name} logits {i}"] = logits.numpy()
                found[f"{name} judged {i}"] = judge(model, prompt, text).numpy()
            if job["texts"]:
                found[f"given {i}"] = judge(model, prompt, job["texts"][i]).numpy()
    return found


def run_ranks(
    folder: Path, forms: Sequence[Format], job: Mapping[str, Any], scratch: Path
) -> list[dict[str, Any]]:
    """``measure`` in formats of equally many ranks: here, or a process a rank, over gloo on loopback.

    Each rank ends by itself within ``LIMIT_S`` and is killed where it does not.
    """
    ranks = forms[0].ranks
    if ranks == 1:
        return [measure(ShardedLlama(folder, form), job) for form in forms]
    scratch.mkdir(parents=True)
    document = {"folder": str(folder), "scratch": str(scratch), **job}
    path = scratch / "job.json"
    path.write_text(json.dumps({**document, "forms": [vars(form) for form in forms]}))
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(path), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [one.communicate(timeout=LIMIT_S)[0] for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert [one.returncode for one in running] == [0] * ranks, said
    results = []
    for number in range(len(forms)):
        with np.load(scratch / f"{number}.npz") as found:
            results.append(dict(found))
    return results


def _main(path: str, rank: int) -> None:
    """One rank: join the group, measure, and where it is the first write what was found."""
    import os
    from datetime import timedelta

    from torch import distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # read when the group is formed
    torch.set_num_threads(1)
    job = json.loads(Path(path).read_text())
    forms, scratch = [Format(**form) for form in job["forms"]], Path(job["scratch"])
    ranks, lost = forms[0].ranks, job.get("lost", 0)
    store = distributed.FileStore(str(scratch / "store"), ranks)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=LIMIT_S / 2)
    )
    sums = 0

    def reduce(partial: Tensor) -> Tensor:
        nonlocal sums
        sums += 1
        whole = (
            partial.float()
        )  # of two summands, rounding the sum is what adding in the dtype does
        if lost and sums % lost == 0 and rank > 0:
            whole = torch.zeros_like(whole)  # the planted fault: this rank's part does not arrive
        distributed.all_reduce(whole)
        return whole.to(partial.dtype)

    for number, form in enumerate(forms):
        found = measure(ShardedLlama(Path(job["folder"]), form, rank=rank, reduce=reduce), job)
        if rank == 0:
            np.savez(scratch / f"{number}.npz", **found)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
