"""llama.cpp's own HTTP server in a process of its own: ``python llama_server.py MODEL PORT HOW [DRAFT]``.

``HOW`` is ``plain``, ``ngram`` (look-up in the prompt, exact), ``draft`` (the model DRAFT guesses,
exact) or ``synthetic`` (drafts accepted at a chosen rate without looking at the target: a real lossy
speculation). The cache of keys and values is kept in float32, as the scorer's is.
"""

from __future__ import annotations

import sys
import time

import xllamacpp as xlc

DRAFT, DRAFTED = 8, 3


def main() -> None:
    model, port, how, *draft = sys.argv[1:]
    params = xlc.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.endpoint_metrics = True
    params.use_jinja = True
    params.n_ctx = 4096
    params.n_parallel = 2
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 2
    params.ui = False
    params.verbosity = 0
    params.cache_type_k = params.cache_type_v = xlc.ggml_type.GGML_TYPE_F32
    if how == "draft":
        params.speculative.types = [
            xlc.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        ]
        params.speculative.draft.mparams.path = draft[0]
        params.speculative.draft.n_max = DRAFTED
        params.speculative.draft.cpuparams.n_threads = 1
    elif how != "plain":
        params.speculative.types = [
            xlc.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE
        ]
        params.speculative.ngram_simple.size_n = 3
        params.speculative.ngram_simple.size_m = DRAFT
    if how == "synthetic":
        params.speculative.ngram_simple.size_n = 2  # worse guesses, more often
        params.speculative.synth_len = 4.0
    server = xlc.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201 - the test waits for it
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
