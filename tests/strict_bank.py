"""The strict e-process over what an engine really emitted, p from its independent forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from engine_driver import drive

from gatekeeper.core.stats.eprocess import Bank, bonus_by_index, running_log_e
from gatekeeper.core.stats.evidence import RequestEvidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gatekeeper.core.decoding import DecodeRequest


def strict_log10_e(engine: Any, batches: Iterable[Sequence[DecodeRequest]]) -> float:
    """Largest log10 E; the requests of a batch run together and count in their order.

    Requests of the same prompt are replicates of each other.
    """
    bank, total, largest = Bank(engine.info.vocab_size, seed=0), None, 0.0
    prompts: dict[tuple[int, ...], list[str]] = {}
    for batch in batches:
        done = drive(engine, batch)
        for request in batch:
            twins = prompts.setdefault(tuple(request.prompt), [])
            twins.append(request.request_id)
            mine = [e for e in done.emissions if e.request_id == request.request_id]
            tokens = done.tokens[request.request_id]
            evidence = RequestEvidence(
                prompt=list(prompts).index(tuple(request.prompt)),
                replicate=len(twins) - 1,
                request=sum(map(len, prompts.values())),
                token=np.array(tokens),
                p=engine.score(
                    request.prompt,
                    tokens,
                    request.sampling,
                    stop=request.end_tokens,
                    min_tokens=request.min_tokens,
                ).p,
                q=np.concatenate([e.q for e in mine]),
                k=np.array([k for e in mine for k in range(len(e.tokens))]),
                round=np.array([e.round for e in mine for _ in e.tokens]),
                kind=np.array([kind for e in mine for kind in e.kind]),
                draft=np.array([draft for e in mine for draft in e.draft]),
            )
            bonus = bonus_by_index(evidence, request.gamma, kind_is_past=True)
            log_f = bank.add(evidence, bonus).log_f
            largest = max(largest, float(running_log_e(log_f, total).max()))
            total = log_f.sum(axis=0) if total is None else total + log_f.sum(axis=0)
    return largest / float(np.log(10))
