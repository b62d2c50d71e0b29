"""Broken traces without end: every parser either reads them or raises the declared error.

    python benchmarks/fuzz.py --seconds 600
    python benchmarks/fuzz.py --only jaeger --seconds 60

All formats of the entry-point group ``gatekeeper.traces``. Documents are bent in their structure
(values swapped for odd ones, keys lost or renamed, parts doubled, nested or taken from other
documents) and in their bytes. One that reaches a line of a parser that none reached before is bent
further. What raises anything but ``TraceError``, or takes seconds, is kept under ``.cache/fuzz``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_seeds import seeds

from gatekeeper import plugins
from gatekeeper.core import trace_documents
from gatekeeper.core.span_documents import from_text, to_text
from gatekeeper.core.trace_documents import Document, decode, read_traces
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

    from gatekeeper.core.trace_documents import TraceFormat

    Trial = Callable[[bytes], bool]

__all__ = ["Fuzzer", "formats", "parts", "trial"]

ROOT = Path(__file__).parents[1]
FOUND = ROOT / ".cache" / "fuzz"
ALL_S = 600.0
SLOW_S = 5.0
MOST_BYTES = 64 * 1024
LARGE = 1e100
DEEP = (20, 300, 900)
"""Levels of nesting; JSON itself can be read down to about a thousand."""

OFTEN = 0.9

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**53 + 1,
    2**63 - 1, 2**63, 2**64, -(2**63), 10**18, 10**40, "", " ", "0", "-1", "1e400", "nan", "true",
    "9" * 30, "\x00", "\ud800", "\x1b[2J", "ab" * 16, "0" * 32, "AAAAAAAAAAA=", "x" * 300,
    "2026-01-31T12:00:00Z", "2026-02-30T25:61:61Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999999-12:00", "12:00", "{", "[1", '{"a": 1}', "[]", [], {}, [[]],
    [None], [1, "a"], [{}], {"": ""}, {"a": None}, {"values": 1}, {"stringValue": 1},
)  # fmt: skip
"""Values that something may not have thought of."""


class TooSlow(BaseException):
    """A parser has taken seconds over some kilobytes; no parser may catch this."""


def formats() -> dict[str, TraceFormat]:
    """Every installed format by its name."""
    return dict(plugins.load_all("gatekeeper.traces"))


def trial(chosen: TraceFormat, everything: Sequence[TraceFormat], data: bytes) -> bool:
    """Read bytes in every way that gatekeeper does; return whether the chosen format took them.

    Raises:
        Exception: whatever a parser raised that it had not declared.
    """
    document = decode(data)
    for one in everything:
        one.accepts(document)
    taken = chosen.accepts(document)
    if taken:
        _spans(partial(chosen.read, document))
    read_spans = getattr(chosen, "read_spans", None)
    if read_spans is not None:
        given = Document(data, None if document.values is None else document.values[:1])
        with _declared():
            read_spans(given)
    _spans(partial(read_traces, data, everything))
    return taken


def _spans(read: Callable[[], Any]) -> None:
    with _declared():
        for trace in read():
            for span in trace.spans:
                with _declared():
                    from_text(to_text(span))


@contextmanager
def _declared() -> Iterator[None]:
    try:
        yield
    except TraceError as error:
        str(error)  # it is shown to somebody


@dataclass
class Fuzzer:
    """Bends documents for one format and remembers which lines they reached."""

    trial: Trial
    start: Sequence[bytes]
    others: Sequence[bytes] = ()
    seed: int = 6
    within: Sequence[str] = ("gatekeeper_adapters/traces/", trace_documents.__file__)
    lines: set[tuple[str, int]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        """Try documents until the time is over."""
        chance = random.Random(self.seed)
        mine = list(self.start)
        strange: list[bytes] = [b"{}"]  # reached something new without being of this format
        end = time.monotonic() + seconds
        for data in mine:
            self._try(data)
        while time.monotonic() < end:
            source = mine if chance.random() < OFTEN else strange
            data = bent(chance, chance.choice(source), [*mine, *self.others])[:MOST_BYTES]
            before = len(self.lines)
            taken = self._try(data)
            if len(self.lines) > before:
                (mine if taken else strange).append(data)
        self.counts["kept"] = len(mine) + len(strange)

    def _try(self, data: bytes) -> bool:
        self.counts["tried"] += 1
        try:
            with _in_time(), self._watched():
                taken = self.trial(data)
        except (Exception, TooSlow) as error:  # noqa: BLE001 - finding any of them is the purpose
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}"
            self.counts["failed"] += 1
            if kind not in self.failures or len(data) < self.failures[kind]["bytes"]:
                self.failures[kind] = {"bytes": len(data), "file": _keep(data), "why": repr(error)}
            return False
        self.counts["taken" if taken else "not this format"] += 1
        return taken

    @contextmanager
    def _watched(self) -> Iterator[None]:
        mine: dict[CodeType, bool] = {}

        def lines(frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 - a tracer
            if event == "line":
                self.lines.add((frame.f_code.co_filename, frame.f_lineno))
            return lines

        def calls(frame: FrameType, _event: str, _argument: object) -> Any:  # noqa: ANN401 - as above
            code = frame.f_code
            if code not in mine:
                mine[code] = any(part in code.co_filename for part in self.within)
            return lines if mine[code] else None

        before = sys.gettrace()
        sys.settrace(calls)
        try:
            yield
        finally:
            sys.settrace(before)


@contextmanager
def _in_time() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"more than {SLOW_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SLOW_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _keep(data: bytes) -> str:
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return str(path)


def bent(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return a document with a few things wrong."""
    values = _json(data)
    if values is None or chance.random() < 0.1:  # noqa: PLR2004 - one in ten is bent in its bytes
        return _bent_bytes(chance, data, others)
    donor = _json(chance.choice(others)) or values
    try:
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            values = _bent_value(chance, values, donor)
        parts = values if isinstance(values, list) and values else [values]
        return b"\n".join(json.dumps(part).encode() for part in parts)
    except RecursionError:  # nested again and again: no JSON any more
        return _bent_bytes(chance, data, others)


def _json(data: bytes) -> list[Any] | None:
    document = decode(data)
    return None if document.values is None else list(document.values)


def _bent_value(chance: random.Random, value: Any, donor: Any) -> Any:  # noqa: ANN401 - JSON
    """Change one place: walk down at random, and do something there."""
    if isinstance(value, dict) and value and chance.random() < 0.85:  # noqa: PLR2004 - mostly deeper
        key = chance.choice(list(value))
        changed = dict(value)
        what = chance.random()
        if what < 0.08:  # noqa: PLR2004 - shares of what is done with a key
            del changed[key]
        elif what < 0.12:  # noqa: PLR2004
            changed[chance.choice(("", "id", "name", "type", "x" * 50, key.upper()))] = changed.pop(
                key
            )
        else:
            changed[key] = _bent_value(chance, value[key], donor)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.85:  # noqa: PLR2004 - as above
        at = chance.randrange(len(value))
        what = chance.random()
        if what < 0.08:  # noqa: PLR2004
            return value[:at] + value[at + 1 :]
        if what < 0.16:  # noqa: PLR2004
            return [*value, value[at]]
        return [*value[:at], _bent_value(chance, value[at], donor), *value[at + 1 :]]
    return _odd(chance, value, donor)


def _odd(chance: random.Random, value: Any, donor: Any) -> Any:  # noqa: ANN401 - JSON
    number = value if isinstance(value, (int, float)) and abs(value) < LARGE else 1
    odd = chance.choice(ODD)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: odd,
        lambda: odd,
        lambda: [value],
        lambda: {"a": value},
        lambda: json.dumps(value),
        lambda: _somewhere(chance, donor),
        lambda: chance.choice((-number, number * 1000, number / 1e9, str(number), number + 0.5)),
        lambda: _deep(chance, value),
    )
    return chance.choice(ways)()


def _deep(chance: random.Random, value: Any) -> Any:  # noqa: ANN401 - JSON
    for _ in range(chance.choice(DEEP)):
        value = [value] if chance.random() < 0.5 else {"values": value}  # noqa: PLR2004 - a coin
    return value


def _somewhere(chance: random.Random, value: Any) -> Any:  # noqa: ANN401 - JSON
    while isinstance(value, (dict, list)) and value and chance.random() < 0.8:  # noqa: PLR2004
        value = chance.choice(list(value.values()) if isinstance(value, dict) else value)
    return value


def _bent_bytes(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(out) + 1)
        to = min(len(out), at + chance.choice((1, 2, 8, 64)))
        what = chance.randrange(5)
        if what == 0:
            del out[at:to]
        elif what == 1:
            out[at:at] = chance.randbytes(chance.choice((1, 4, 16)))
        elif what == 2:  # noqa: PLR2004 - one way of five
            out[at:to] = chance.randbytes(to - at)
        elif what == 3:  # noqa: PLR2004
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            out[at:at] = other[start : start + chance.choice((8, 64, 1024))]
        else:
            out[at:at] = bytes(out[at:to]) * chance.choice((1, 2, 16))
    return bytes(out)


def run(name: str, seconds: float, *, seed: int = 6) -> dict[str, Any]:
    """Fuzz one format; ``holds`` when nothing but the declared error was raised."""
    known = formats()
    documents = seeds()
    others = [one for each in documents.values() for one in each]
    fuzzer = Fuzzer(
        partial(trial, known[name], list(known.values())), documents[name], others, seed
    )
    fuzzer.run(seconds)
    return {
        **fuzzer.counts,
        "lines": len(fuzzer.lines),
        "failures": fuzzer.failures,
        "holds": not fuzzer.failures,
    }


def parts(seconds: float = ALL_S) -> dict[str, Callable[[], dict[str, Any]]]:
    """Parts of ``make verify STAGE=fuzz``: a format each, ten minutes in all."""
    names = list(formats())
    return {name: partial(run, name, seconds / len(names)) for name in names}


def main() -> int:
    """Fuzz and print what was found; exit 1 when something was."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=ALL_S, help="in all")
    parser.add_argument("--only", choices=sorted(formats()))
    parser.add_argument("--seed", type=int, default=6)
    chosen = parser.parse_args()
    names = [chosen.only] if chosen.only else list(formats())
    found = {name: run(name, chosen.seconds / len(names), seed=chosen.seed) for name in names}
    print(json.dumps(found, indent=1))
    return 0 if all(one["holds"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
