"""Spans in: from the bytes of a request to rows that are committed before anybody says so."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast

from gatekeeper import plugins
from gatekeeper.actions.ingest_settings import IngestLimits
from gatekeeper.actions.redaction import Redactor
from gatekeeper.actions.tasks import routing_of
from gatekeeper.core.span_documents import clean, digest, to_text
from gatekeeper.core.trace_documents import Document, SpanReader, read_traces
from gatekeeper.errors import InputError, TooLarge, TraceError
from gatekeeper.store import retention, tasks
from gatekeeper.store import spans as store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.traces import Span
    from gatekeeper.store.database import Database

__all__ = ["Intake", "Received", "import_file", "ingest_otlp", "unpacked"]

_GZIP = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 1024
"""Most gzip files in one body: what follows a member is copied, so many empty ones cost hours."""

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHOWN = 3


@dataclass(frozen=True)
class Intake:
    """Where spans go, and what they lose on the way.

    ``patience_s``: how long storing waits for locks that others hold.
    """

    db: Database
    redactor: Redactor = field(default_factory=Redactor)
    patience_s: float = IngestLimits.patience_s


@dataclass(frozen=True)
class Received:
    """What became of a request's spans: ``new`` and ``known`` ones are stored, the others are not.

    ``reasons`` says why, one sentence for each rejected span. ``redacted`` counts the attributes
    that were left out, by the rule that said so.
    """

    new: int
    known: int
    reasons: tuple[str, ...]
    tasks: tuple[str, ...]
    redacted: Mapping[str, int] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        """How many spans were refused."""
        return len(self.reasons)

    @property
    def message(self) -> str:
        """The first reasons in one line; empty when nothing was refused."""
        shown = " | ".join(self.reasons[:_SHOWN])
        more = self.rejected - _SHOWN
        return f"{shown} | and {more} more" if more > 0 else shown


def unpacked(body: bytes, encoding: str, *, most: int = IngestLimits.unpacked_bytes) -> bytes:
    """Return the body without its content encoding, never more than ``most`` bytes of it in memory.

    Raises:
        InputError: the encoding is not known here (its field is ``Content-Encoding``).
        TraceError: the gzip stream is broken or cut off.
        TooLarge: it unpacks to more than ``most``, or has too many members.
    """
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        _check_size(len(body), most)
        return body
    if coding not in ("gzip", "x-gzip"):
        raise InputError(
            "is not supported",
            field="Content-Encoding",
            value=encoding,
            remedy="send gzip, or no encoding",
        )
    parts: list[bytes] = []
    size = members = 0
    rest = body
    while rest:  # a gzip file may have several members
        members += 1
        if members > _MAX_MEMBERS:
            raise TooLarge(
                f"has more than {_MAX_MEMBERS} gzip members",
                field="body",
                remedy="compress it as a whole",
            )
        stream = zlib.decompressobj(_GZIP)
        try:
            part = stream.decompress(rest, most + 1 - size)
        except zlib.error as error:
            _broken(str(error))
        parts.append(part)
        size += len(part)
        _check_size(size, most)
        if not stream.eof:
            _broken("it ends too early")
        rest = stream.unused_data
    return b"".join(parts)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(
            f"unpacks to more than {most} bytes",
            field="body",
            remedy="send fewer spans at a time",
        )


def _broken(reason: str) -> NoReturn:
    raise TraceError(
        f"is not gzip ({reason})", field="body", remedy="send it whole, or without an encoding"
    )


def ingest_otlp(intake: Intake, body: bytes, *, as_json: bool) -> Received:
    """Store the spans of one OTLP export request.

    A broken span is refused by itself, and so is one whose id is stored with another content; a
    span that is stored already is accepted in silence.

    Raises:
        TraceError: the body is no such request, or not one of its spans can be read.
    """
    reader = cast("SpanReader", plugins.load("gatekeeper.traces", "otlp"))
    try:
        document = Document(body, (_json(body),) if as_json else None)
        spans, refused = reader.read_spans(document)
    except RecursionError as error:
        raise TraceError(
            "is nested too deeply", field="body", remedy="send flatter attributes"
        ) from error
    if refused and not spans:
        raise TraceError(
            f"holds no span that can be read: {_joined(refused)}",
            field="body",
            remedy="correct the exporter",
        )
    return _store(intake, spans, source_format="otlp", refused=refused)


def _json(body: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise TraceError(
            f"is not UTF-8 at byte {error.start}", field="body", remedy="send OTLP JSON in UTF-8"
        ) from error
    except ValueError as error:
        raise TraceError(f"is not JSON ({error})", field="body", remedy="send OTLP JSON") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _joined(reasons: Sequence[str]) -> str:
    return " | ".join(reasons[:_SHOWN])


def import_file(intake: Intake, body: bytes) -> tuple[str, Received]:
    """Store the spans of one trace file in any known format; return the format's name with them.

    Raises:
        TraceError: the file is of no known format, or broken.
    """
    formats = list(plugins.load_all("gatekeeper.traces").values())
    try:
        traces = read_traces(body, formats)
    except RecursionError as error:
        raise TraceError("is nested too deeply", field="file", remedy="export it again") from error
    source = traces[0].source_format
    notes = {_task_id(trace.trace_id): [clean(n) for n in trace.repairs] for trace in traces}
    spans = [span for trace in traces for span in trace.spans]
    return source, _store(intake, spans, source_format=source, notes=notes)


def _store(
    intake: Intake,
    spans: Iterable[Span],
    *,
    source_format: str,
    refused: Sequence[str] = (),
    notes: Mapping[str, Sequence[str]] | None = None,
) -> Received:
    rows: list[store.SpanRow] = []
    reasons = list(refused)
    redacted: Counter[str] = Counter()
    names: dict[str, str] = {}
    for span in spans:
        try:
            text = to_text(intake.redactor(span, redacted))
        except TraceError as error:
            reasons.append(error.unquoted())
        else:
            task = names.get(span.trace_id) or names.setdefault(
                span.trace_id, _task_id(span.trace_id)
            )
            rows.append(store.SpanRow(span.trace_id, span.span_id, task, digest(text), text))
    with intake.db.write(patience_s=intake.patience_s) as session:
        closed = retention.without_spans(session, {row.task for row in rows})
        late = [row for row in rows if row.task in closed]
        rows = [row for row in rows if row.task not in closed]
        stored = store.insert(session, rows)
        tasks.touch(
            session,
            [row.task for row in stored.new],
            source_format=source_format,
            quiet_s=routing_of(session).least_quiet_s,
            notes=notes,
        )
    reasons += [
        f"span {row.span_id} of trace {row.trace_id}: another span with this id is stored already"
        for row in stored.conflicts
    ] + [
        f"span {row.span_id} of trace {row.trace_id}: too late, the spans of its task were removed"
        for row in late
    ]
    known = len(rows) - len(stored.new) - len(stored.conflicts)
    return Received(
        len(stored.new),
        known,
        tuple(reasons),
        tuple(sorted({row.task for row in rows})),
        dict(redacted),
    )


def _task_id(trace_id: str) -> str:
    """Return a trace's task id: its own id where that fits into a URL, else a digest of it."""
    if _SAFE_ID.fullmatch(trace_id):
        return trace_id
    return hashlib.sha256(trace_id.encode(errors="backslashreplace")).hexdigest()[:32]
