"""Load generators: how requests meet an engine."""

from gatekeeper.load.closed_loop import REQUEST_COLUMNS, ROUND_COLUMNS, Block, run_block
from gatekeeper.load.transcripts import Transcript, transcripts

__all__ = [
    "REQUEST_COLUMNS",
    "ROUND_COLUMNS",
    "Block",
    "Transcript",
    "run_block",
    "transcripts",
]
