"""llama.cpp's real server, judged by our own forward: look-up and a draft are exact, one mode is not.

    python benchmarks/real_llamacpp.py [ngram|draft|synthetic ...] [--tokens N]

Both servers run SmolLM2-135M dequantised to float32, the very weights that the reference engine
loads. Look-up in the prompt and a draft of the model's first blocks must never FAIL; acceptance at a
chosen rate (``synthetic``) must.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

from proposer_kinds import CACHE, say

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where llama.cpp's server is started

from gatekeeper.config import data_dir
from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.policies import Policy
from gatekeeper.core.running_pair import declared_weights, pair_document, scorer_document
from gatekeeper.core.yaml_documents import from_yaml
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gatekeeper.protocols import Engine

__all__ = ["HOWS", "on_llamacpp", "parts"]

HOWS = ("ngram", "draft", "synthetic")
LOSSY = "synthetic"
TOKENS = 2000
"""Sampled tokens of an exact arm."""

_BLOCKS = 4
"""First blocks of the model that make the draft: hardly ever right, so nearly every round corrects."""


def policy(tokens: int) -> Policy:
    """The demo's gate with as many tokens as asked for, and tolerances that they can fill."""
    document: Any = from_yaml((data_dir("policies") / "demo.yaml").read_bytes(), file="demo.yaml")
    document["equivalence"] |= {"tokens_per_request": 32, "max_batch": 2}
    document["equivalence"]["greedy"] |= {"prompts": 6}
    document["equivalence"]["sampled"] |= {"min_tokens": tokens, "max_tokens": tokens}
    return Policy.from_dict(document)


def on_llamacpp(how: str, *, tokens: int = TOKENS) -> dict[str, Any]:
    """One run of the gate between two servers; ``holds`` where it found what it has to."""
    from gatekeeper_adapters.engines.openai_http.provider import PROVIDER  # noqa: PLC0415
    from llama import fetched, llama, rewritten  # noqa: PLC0415 - needs the tests' packages

    source = fetched()
    model = rewritten(source, source.with_name("f32.gguf"))
    draft = rewritten(source, source.with_name("draft.gguf"), layers=_BLOCKS, whole=False)
    more = (str(draft),) if how == "draft" else ()
    with llama(model, "plain") as baseline, llama(model, how, *more) as candidate:
        document = pair_document(
            baseline,
            candidate,
            model=None,
            gamma=None,
            version=PROVIDER.version(),
            weights=_weights(),
        )
        run = _run(document, policy(tokens))
        pair = PROVIDER.open(document, cache=CACHE, max_batch=1, device="cpu")
        began = time.monotonic()
        found = measure(
            run,
            pair,
            Tracker(time.monotonic, lambda progress: say(f"{how}: {progress}")),
            lambda: False,
            time.monotonic,
            scorer=partial(_scorer, document),
        )
    result = found.result
    scored = result.summary["scoring"]["rule"] == "own forward"
    outcome = str(result.outcome)
    holds = scored and (outcome == "FAIL") == (how == LOSSY)
    say(
        f"{how}: {outcome} by {result.summary['scoring']['rule']}, {result.summary['tokens']} tokens"
    )
    return {
        "real_server": how,
        "outcome": outcome,
        "parts": {part.name: [str(part.outcome), part.detail] for part in result.parts},
        "scoring": result.summary["scoring"],
        "strict": result.summary["strict"],
        "greedy": result.summary["greedy"],
        "wall_s": round(time.monotonic() - began),
        "holds": holds,
    }


def _weights() -> dict[str, Any]:
    from gatekeeper_adapters.engines.reference.provider import PROVIDER  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.sources import SMOLLM2  # noqa: PLC0415

    found = PROVIDER.manifest(SMOLLM2, cache=CACHE)
    named = ("source", "revision", "files", "tokenizer", "vocab_size")
    return {"engine": PROVIDER.name, **{name: found[name] for name in named}}


def _scorer(document: Mapping[str, Any]) -> Engine:
    from gatekeeper_adapters.engines.reference.loader import Options  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.provider import PROVIDER  # noqa: PLC0415

    weights = declared_weights(document)
    assert weights is not None  # noqa: S101 - _weights() is there
    provider = replace(PROVIDER, note=say, options=Options(max_context=1024))
    opened = scorer_document(weights, version=provider.version())
    return provider.open(opened, cache=CACHE, max_batch=1, device="cpu")


def _run(document: Mapping[str, Any], rules: Policy) -> ClaimedRun:
    return ClaimedRun(
        id="llamacpp",
        gate="equivalence",
        route="llamacpp",
        slice="prose",
        artifact_digest="0" * 64,
        artifact=document,
        policy=rules,
        parameters={},
        attempt=1,
        fence=1,
        cancel_requested=False,
        sampling=(GREEDY,),
        slo=None,
    )


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Parts of the detection stage."""
    return {f"real-llamacpp-{how}": partial(on_llamacpp, how) for how in HOWS}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each way of speculating gets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("how", nargs="*", help=f"all, or some of {', '.join(HOWS)}")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    chosen = parser.parse_args(arguments)
    for how in chosen.how or HOWS:
        found = on_llamacpp(how, tokens=chosen.tokens)
        for name, (outcome, detail) in found["parts"].items():
            say(f"  {outcome:<12} {name}: {detail}")


if __name__ == "__main__":
    main()
