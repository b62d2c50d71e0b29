"""Load generators: how requests meet an engine."""

from gatekeeper.load.closed_loop import REQUEST_COLUMNS, ROUND_COLUMNS, Block, run_block
from gatekeeper.load.metered import MeteredEngine
from gatekeeper.load.over_http import (
    MAX_FAILURES,
    REQUEST_LIMIT_S,
    Answer,
    Served,
    serve_requests,
)
from gatekeeper.load.transcripts import Transcript, transcripts

__all__ = [
    "MAX_FAILURES",
    "REQUEST_COLUMNS",
    "REQUEST_LIMIT_S",
    "ROUND_COLUMNS",
    "Answer",
    "Block",
    "MeteredEngine",
    "Served",
    "Transcript",
    "run_block",
    "serve_requests",
    "transcripts",
]
