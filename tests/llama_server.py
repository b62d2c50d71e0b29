"""llama.cpp's own HTTP server in a process of its own: ``python llama_server.py MODEL PORT HOW``.

``HOW`` is ``plain``, ``ngram`` (look-up in the prompt, exact) or ``synthetic`` (drafts accepted at a
chosen rate without looking at the target: a real lossy speculation).
"""

from __future__ import annotations

import sys
import time

import xllamacpp as xlc

DRAFT = 8


def main() -> None:
    model, port, how = sys.argv[1:]
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
    if how != "plain":
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
