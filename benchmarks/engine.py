"""The reference engine beside transformers ``generate()``: one run, same weights, CPU time, 1 thread.

    python benchmarks/engine.py [--dtype float32 bfloat16] [--tokens 48] [--json FILE]

Variants are interleaved in rounds and the fastest of each is kept, because a shared machine only ever
adds time. A rate is generated tokens per second of process CPU time, prompts included; the batch ratio
is of decoding alone, after every prompt is cached, and is printed with prompts too. A target that is
missed is printed as missed, with the reason where the processor is the reason.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from assistant import assistant_model
from cells import cells
from cpu_time import Case, fastest, least_ms
from gatekeeper_adapters.engines.reference import PROVIDER
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.loader import Options, load_engine
from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.sources import SMOLLM2
from proposer_kinds import CACHE, artifacts
from proposer_speed import open_several
from transformers import AutoModelForCausalLM

from gatekeeper import workloads
from gatekeeper.core.decoding import GREEDY, DecodeRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, CONTEXT, GAMMA = 8, 512, 4
CALL = '{{"name": "get_weather", "arguments": {{"city": "{}", "unit": "celsius"}}}}'
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Hanoi", "Dakar")
TARGETS = {
    "float32": {"plain": 1.05, "ngram": 1.0, "batch": 3.0, "assistant": 1.2, "best cell": 1.3},
    "bfloat16": {"plain": 1.3, "ngram": 1.0, "batch": 4.0, "assistant": 1.2, "best cell": 1.3},
}
DRAFTS = ("draft_lm", "eagle")
DRAFT_GAMMA = 2


def prompts(engine: Any) -> list[tuple[int, ...]]:  # noqa: ANN401 - the engine under test
    """Repetitive tool calls, one per city: text that look-up can predict."""
    head, tail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    wish = "Write one get_weather tool call per line for each of these cities: "
    texts = []
    for i in range(len(CITIES)):
        order = CITIES[i:] + CITIES[:i]
        begun = "".join(f"{CALL.format(city)}\n" for city in order[:2])
        texts.append(engine.tokenize(f"{head}{wish}{', '.join(order)}.{tail}{begun}"))
    return texts


def decode(
    engine: Any,  # noqa: ANN401 - the engine under test
    texts: Sequence[tuple[int, ...]],
    tokens: int,
    gamma: int,
    proposer: str | None = None,
) -> list[Any]:
    """Run to the end; the rounds. End tokens are ignored so that lengths are equal everywhere."""
    for i, prompt in enumerate(texts):
        engine.submit(DecodeRequest(str(i), prompt, tokens, gamma=gamma, proposer=proposer))
    rounds: list[Any] = []
    left = len(texts)
    while left:
        result = engine.step()
        rounds += result.rounds
        left -= len(result.finished)
    return rounds


def steady(engine: Any, texts: Sequence[tuple[int, ...]], tokens: int) -> float:  # noqa: ANN401
    """Tokens per CPU second of ordinary decoding once every prompt is cached."""
    for i, prompt in enumerate(texts):
        engine.submit(DecodeRequest(str(i), prompt, tokens))
    started: set[str] = set()
    while len(started) < len(texts):
        started |= {emission.request_id for emission in engine.step().emitted}
    count, left, start = 0, len(texts), time.process_time()
    while left == len(texts):
        result = engine.step()
        count += sum(entry.committed for entry in result.rounds)
        left -= len(result.finished)
    rate = count / (time.process_time() - start)
    for i in range(len(texts)):
        engine.cancel(str(i))
    engine.step()
    return rate


def generate(model: Any, texts: Sequence[tuple[int, ...]], tokens: int, **extra: Any) -> int:  # noqa: ANN401
    """Greedy ``generate()`` one prompt at a time, end tokens ignored."""
    for prompt in texts:
        ids = torch.tensor([prompt])
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=2,
            **extra,
        )
    return tokens * len(texts)


def steps(engine: Any) -> dict[str, float]:  # noqa: ANN401 - the engine under test
    """Milliseconds of one forward: batch × rows per sequence, context 256."""
    decoder = engine._decoder  # noqa: SLF001 - the forward alone has no public name
    out = {}
    for batch in (1, 4, SLOTS):
        for rows in (1, 2, GAMMA + 1):
            segments = [Segment(s, 256, [5] * rows, rows) for s in range(batch)]
            packed = pack(segments, decoder.cache)
            with torch.inference_mode():
                out[f"b{batch} q{rows}"] = least_ms(lambda packed=packed: decoder.forward(packed))
    return out


def overhead_us(engine: Any, prompt: tuple[int, ...], gamma: int) -> float:  # noqa: ANN401
    """Microseconds per round that are not the forward: schedule, draft, verify, commit, record.

    The forward is replaced by a recording of its own answers, so what is left is ours.
    """
    decoder = engine._decoder  # noqa: SLF001 - the forward is what must be taken out
    forward, answers = decoder.forward, []

    def record(batch: Any) -> Any:  # noqa: ANN401 - tensors
        answers.append(forward(batch))
        return answers[-1]

    decoder.forward = record
    decode(engine, [prompt], 32, gamma)
    best = float("inf")
    for _ in range(3):
        replay = iter(answers)
        decoder.forward = lambda _, replay=replay: next(replay)
        start = time.process_time()
        rounds = decode(engine, [prompt], 32, gamma)
        best = min(best, (time.process_time() - start) / len(rounds))
    decoder.forward = forward
    return best * 1e6


def measure(folder: Path, dtype: str, tokens: int, repeats: int) -> dict[str, Any]:
    """All figures of one dtype."""
    engine = load_engine(
        folder,
        {"kind": "ngram"},
        version=PROVIDER.version(),
        dtype=dtype,
        options=Options(max_batch=SLOTS, max_context=CONTEXT),
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    texts = prompts(engine)
    single = texts[:2]
    accepted: dict[str, int] = {}

    def own(batch: Sequence[tuple[int, ...]], gamma: int, *, together: bool) -> int:
        groups = [batch] if together else [[prompt] for prompt in batch]
        rounds = [entry for group in groups for entry in decode(engine, group, tokens, gamma)]
        if gamma:
            accepted["accepted"] = sum(entry.accepted for entry in rounds)
            accepted["drafted"] = sum(entry.drafted for entry in rounds)
        return sum(entry.committed for entry in rounds)

    look_up = {"prompt_lookup_num_tokens": GAMMA, "max_matching_ngram_size": 3}
    cases = [
        Case("generate()", lambda: generate(model, single, tokens)),
        Case("own plain", lambda: own(single, 0, together=False)),
        Case("generate() look-up", lambda: generate(model, single, tokens, **look_up)),
        Case("own look-up", lambda: own(single, GAMMA, together=False)),
        Case("own plain, batch 8", lambda: own(texts, 0, together=True)),
    ]
    with torch.inference_mode():
        rates = fastest(cases, repeats)
    decoding = {
        name: max(steady(engine, texts[:count], tokens) for _ in range(repeats))
        for name, count in (("batch 1", 1), ("batch 8", SLOTS))
    }
    weights = [p for p in model.parameters()]  # noqa: C416 - tied ones appear once
    read_ms = least_ms(lambda: [w.view(-1).view(torch.float32).sum() for w in weights])
    forwards = steps(engine)
    scored = texts[0] * 2
    score_ms = least_ms(lambda: engine.score(scored[:100], scored[100:180], GREEDY), 3)
    drafts = drafted(folder, model, dtype, tokens, repeats)
    ends = cells(dtype, tokens, repeats)
    return {
        "identity_rule": engine.info.identity_rule,
        "processor": engine.info.details["processor"],
        "tokens_per_cpu_s": rates,
        "decoding_tokens_per_cpu_s": decoding,
        "forward_ms": forwards,
        "read_weights_ms": read_ms,
        "read_share_of_step": read_ms / forwards["b1 q1"],
        "score_tokens_per_cpu_s": 80e3 / score_ms,
        "acceptance_look_up": accepted["accepted"] / accepted["drafted"],
        "overhead_us_per_round": {
            f"gamma {g}": overhead_us(engine, texts[0], g) for g in (0, GAMMA)
        },
        "ratios": {
            "plain": rates["own plain"] / rates["generate()"],
            "ngram": rates["own look-up"] / rates["generate() look-up"],
            "batch": decoding["batch 8"] / decoding["batch 1"],
            "batch, prompts included": rates["own plain, batch 8"] / rates["own plain"],
            **drafts["ratios"],
            "best cell": max(ends.values()),
        },
        "drafts": drafts,
        "end_to_end": ends,
    }


def drafted(folder: Path, model: Any, dtype: str, tokens: int, repeats: int) -> dict[str, Any]:  # noqa: ANN401
    """Our drafts beside transformers' assistant-model generation with the same draft and prompts."""
    engine = open_several(DRAFTS, dtype, prefixes=0)
    source = artifacts(["draft_lm"], dtype=dtype)["draft_lm"]["proposer"]["source"]
    draft = prepare(source, CACHE, print)
    # a constant window as here, and what the library itself would choose: the faster one counts
    assistants = {
        f"generate() assistant, {name}": assistant_model(
            draft, folder, dtype=getattr(torch, dtype), window=window
        )
        for name, window in ((f"gamma {DRAFT_GAMMA}", DRAFT_GAMMA), ("default", None))
    }
    texts = [workloads.tokenised(name, engine.tokenize)[0].tokens for name in ("code", "prose")]
    counts: dict[str, list[int]] = {}

    def own(kind: str | None) -> int:
        gamma = DRAFT_GAMMA if kind else 0
        rounds = [r for text in texts for r in decode(engine, [text], tokens, gamma, kind)]
        if kind:
            counts[kind] = [sum(r.accepted for r in rounds), sum(r.drafted for r in rounds)]
        return sum(entry.committed for entry in rounds)

    cases = [
        Case("own plain, same texts", lambda: own(None)),
        *(Case(f"own {kind}", partial(own, kind)) for kind in DRAFTS),
        *(
            Case(name, partial(generate, model, texts, tokens, assistant_model=assistant))
            for name, assistant in assistants.items()
        ),
    ]
    with torch.inference_mode():
        rates = fastest(cases, repeats)
    engine.close()
    peer = max(rates[name] for name in assistants)
    return {
        "tokens_per_cpu_s": rates,
        "acceptance": {kind: done / tried for kind, (done, tried) in counts.items()},
        "ratios": {
            "assistant": rates["own draft_lm"] / peer,
            "eagle over assistant": rates["own eagle"] / peer,
        },
    }


def show(dtype: str, found: dict[str, Any]) -> None:
    """Print one dtype's table."""
    print(f"\n{dtype} on {found['processor']}: identity rule {found['identity_rule']}")
    for name, rate in found["tokens_per_cpu_s"].items():
        print(f"  {name:22s} {rate:7.1f} tokens/s of CPU time")
    for name, rate in found["decoding_tokens_per_cpu_s"].items():
        print(f"  decoding only, {name} {rate:7.1f} tokens/s of CPU time")
    print(f"  scoring                {found['score_tokens_per_cpu_s']:7.1f} tokens/s of CPU time")
    print(f"  look-up acceptance     {found['acceptance_look_up']:7.2f}")
    for name, ms in found["forward_ms"].items():
        print(f"  forward {name:14s} {ms:7.1f} ms")
    share = found["read_share_of_step"]
    print(f"  one read of weights    {found['read_weights_ms']:7.1f} ms = {share:.0%} of a step")
    for name, us in found["overhead_us_per_round"].items():
        print(f"  overhead, {name:12s} {us:7.0f} µs per round beside the forward")
    for name, target in TARGETS[dtype].items():
        ratio = found["ratios"][name]
        state = "met" if ratio >= target else "MISSED"
        print(f"  {name:8s} {ratio:5.2f} × (target {target:.2f} ×) {state}")
    for name in ("batch, prompts included", "eagle over assistant"):
        print(f"  {name} {found['ratios'][name]:.2f} ×")
    for name, rate in found["drafts"]["tokens_per_cpu_s"].items():
        print(f"  {name:30s} {rate:7.1f} tokens/s of CPU time")
    for name, ratio in found["end_to_end"].items():
        print(f"  end to end, {name:40s} {ratio:5.2f} × ordinary decoding")
    if dtype == "bfloat16" and found["processor"] in {"DEFAULT", "AVX2"}:
        print(
            "  this processor has no bf16 arithmetic: products are float32, from half-precision storage"
        )


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    folder = prepare(SMOLLM2, CACHE, print)
    found = {}
    for dtype in chosen.dtype:
        found[dtype] = measure(folder, dtype, chosen.tokens, chosen.repeats)
        show(dtype, found[dtype])
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
