"""What look-up costs: by length of the prompt and size of the corpus, in CPU time of one thread.

    python benchmarks/look_up.py [--corpus 10000 100000 1000000] [--json FILE]

Tokens follow a Zipf law over 49,152 ids, with phrases that come again, so that matches of every length
occur. A prompt costs its index and one look-up a round; a corpus is sorted once and read by binary
search.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gatekeeper_adapters.engines.reference.proposers.corpus_index import CorpusIndex
from gatekeeper_adapters.engines.reference.proposers.ngram import SuffixIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY, PHRASES, PHRASE = 49_152, 2_000, 12
ASKED = 2_000
PROMPTS = (1_000, 10_000, 100_000)


def text(size: int, rng: np.random.Generator) -> NDArray[Any]:
    """Token ids: half of them in phrases of ``PHRASE`` tokens that come again."""
    phrases = rng.zipf(1.2, (PHRASES, PHRASE)) % VOCABULARY
    pieces = []
    for _ in range(-(-size // (2 * PHRASE))):
        pieces += [phrases[rng.integers(PHRASES)], rng.zipf(1.2, PHRASE) % VOCABULARY]
    return np.concatenate(pieces)[:size].astype(np.uint32)


def of_prompts(rng: np.random.Generator, *, max_match: int) -> dict[str, dict[str, float]]:
    """Microseconds a token to index a prompt of each length, and a look-up at its end."""
    found = {}
    for size in PROMPTS:
        tokens = text(size, rng).tolist()
        index = SuffixIndex(1, max_match)
        start = time.process_time()
        index.extend(tokens)
        indexed = time.process_time()
        for _ in range(ASKED):
            index.find(tokens)
        done = time.process_time()
        found[str(size)] = {
            "index_us_per_token": (indexed - start) / size * 1e6,
            "find_us": (done - indexed) / ASKED * 1e6,
        }
    return found


def of_corpus(size: int, rng: np.random.Generator, *, max_match: int) -> dict[str, float]:
    """Seconds to sort a corpus, bytes it is held in, microseconds of a look-up, matches by length."""
    tokens = text(size, rng)
    start = time.process_time()
    built = CorpusIndex.build(tokens, max_match)
    build_s = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        built.save(Path(folder))
        index = CorpusIndex.load(Path(folder))
        ends = [tokens[at : at + 16].tolist() for at in rng.integers(0, size - 32, ASKED)]
        start = time.process_time()
        matches = [index.find(end, 1) for end in ends]
        find_us = (time.process_time() - start) / ASKED * 1e6
    lengths = [0 if match is None else match[1] for match in matches]
    return {
        "build_s": build_s,
        "bytes": index.bytes,
        "bytes_per_token": index.bytes / size,
        "find_us": find_us,
        "mean_match": sum(lengths) / len(lengths),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--max-match", type=int, default=4)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    prompts = of_prompts(rng, max_match=chosen.max_match)
    corpora = {
        str(size): of_corpus(size, rng, max_match=chosen.max_match) for size in chosen.corpus
    }
    for size, row in prompts.items():
        print(
            f"prompt {size:>8s} tokens: {row['index_us_per_token']:5.2f} µs a token to index, "
            f"{row['find_us']:5.2f} µs a look-up"
        )
    for size, row in corpora.items():
        print(
            f"corpus {size:>8s} tokens: sorted in {row['build_s']:.2f} s, {row['bytes'] / 1e6:.1f} MB "
            f"({row['bytes_per_token']:.1f} bytes a token), {row['find_us']:.1f} µs a look-up, "
            f"mean match {row['mean_match']:.1f} of {chosen.max_match}"
        )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"prompts": prompts, "corpora": corpora}, indent=1))


if __name__ == "__main__":
    main()
