"""Slice ``long_context``: a document of several hundred tokens, then a question about it.

Each prompt has 500 to 1,000 tokens of SmolLM2. Attention and the draft's own cache cost more here,
and an answer that quotes its document is what look-up finds.
"""

from __future__ import annotations

from gatekeeper.workloads.chat import Prompt, chat
from gatekeeper.workloads.documents import DOCUMENTS

__all__ = ["build"]

_ASKED: dict[str, tuple[tuple[str, str], ...]] = {
    "ferry": (
        (
            "start",
            "List the steps before the first crossing of the day, in order, as a numbered list.",
        ),
        (
            "wind",
            "Up to which wind may the ferry cross with cars, and who decides above it? Quote the sentences.",
        ),
        ("fog", "Summarise what changes in fog, in two sentences."),
    ),
    "minutes": (
        (
            "votes",
            "Write each decision on its own line with its votes for, against and abstaining.",
        ),
        ("tasks", "Who promised to do what, and by when? Answer as a list."),
        ("absent", "Write a friendly message of four sentences to a member who was absent."),
    ),
    "log": (
        ("warnings", "Copy every line of the log that holds a WARN, unchanged."),
        ("valve", "What happened to valve 3? Give the times."),
        (
            "json",
            "Turn the first six lines of the log into a JSON array with time, level, zone and message.",
        ),
    ),
    "story": (
        ("continue", "Continue the story with one more paragraph in the same voice."),
        ("people", "Name the people in the story and say in one sentence what each of them wants."),
        ("ending", "Why does Ilse leave the last sheet empty? Quote the sentence that shows it."),
    ),
    "module": (
        ("method", "Add a method total_weight to Shelf and return the whole class Shelf."),
        ("explain", "Explain what reserve does when the part is not on any shelf."),
        ("tests", "Write pytest tests for take and put_back."),
    ),
    "readings": (
        (
            "warmest",
            "Which station was warmest at noon on each day? Answer as a table with day, station and temperature.",
        ),
        ("station", "Copy all rows of the station harbour."),
        ("missing", "Which rows have no rain value, and what could be the reason?"),
    ),
    "thread": (
        ("cause", "What was wrong with locker 14 in the end, and who found it?"),
        ("reply", "Write the reply of the support desk to the last message."),
        ("timeline", "Give the events as a timeline, one line each, with date and name."),
    ),
    "rules": (
        (
            "late",
            "A member returns a drill nine days late. What does it cost, and what else follows?",
        ),
        ("children", "Which tools may nobody under eighteen borrow? Quote the rule."),
        ("short", "Rewrite the rules as eight short sentences for a poster."),
    ),
}


def build() -> tuple[Prompt, ...]:
    """Return three questions a document; the id names document and question."""
    return tuple(
        Prompt(
            f"long_context-{document}-{name}",
            "long_context",
            chat([("user", f"{DOCUMENTS[document]}\n\n{question}")]),
        )
        for document, asked in _ASKED.items()
        for name, question in asked
    )
