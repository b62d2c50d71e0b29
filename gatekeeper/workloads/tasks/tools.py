"""Tasks of kind ``tool``: call the one tool, of four, that a request needs."""

from __future__ import annotations

from gatekeeper.workloads.chat import chat
from gatekeeper.workloads.tasks.task import Task, exactly

__all__ = ["build"]

_OFFERED = "weather, music, mail, map"
_REQUESTS = (
    ("Is it raining in Riga?", "weather"),
    ("How is the weather in Seville?", "weather"),
    ("How windy is the coast?", "weather"),
    ("Weather for Sunday, please.", "weather"),
    ("Will it be hot today?", "weather"),
    ("Is there frost tomorrow?", "weather"),
    ("What weather is coming?", "weather"),
    ("Will it rain tonight?", "weather"),
    ("Play some jazz.", "music"),
    ("Turn the music down.", "music"),
    ("Put on piano music.", "music"),
    ("I want to hear a song.", "music"),
    ("Music for a party.", "music"),
    ("Stop the music.", "music"),
    ("Sing me a waltz.", "music"),
    ("Send Ada the invoice.", "mail"),
    ("Any new mail?", "mail"),
    ("Send a mail to Kai.", "mail"),
    ("Answer Nina.", "mail"),
    ("Mail this to Omar.", "mail"),
    ("Write to the landlord.", "mail"),
    ("Read my mail.", "mail"),
    ("Send a letter to Mia.", "mail"),
    ("Where is the bakery?", "map"),
    ("Show a map of Graz.", "map"),
    ("Draw a map of the walk.", "map"),
    ("Is Elm Row on the map?", "map"),
    ("Open the map.", "map"),
    ("Which way to the lake?", "map"),
    ("Map the road to Bonn.", "map"),
)


def build() -> tuple[Task, ...]:
    """Return 30 tasks; solved by ``name()`` of the right tool and nothing else."""
    shown = [
        ("user", f"Tools: {_OFFERED}.\nWill it snow in Oslo?"),
        ("assistant", "weather()"),
        ("user", "Write to Ben."),
        ("assistant", "mail()"),
    ]
    return tuple(
        Task(
            id=f"tool-{number:02d}",
            kind="tool",
            text=chat([*shown, ("user", asked)]),
            answer=f"{tool}()",
            verify=exactly(f"{tool}()"),
        )
        for number, (asked, tool) in enumerate(_REQUESTS, start=1)
    )
