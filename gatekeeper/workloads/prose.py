"""Slice ``prose``: open questions and stories, where little repeats."""

from __future__ import annotations

from gatekeeper.workloads.chat import Prompt, chat

__all__ = ["build"]

_ASKED: tuple[tuple[str, str], ...] = (
    (
        "lighthouse",
        "Continue the story: The keeper had not spoken for nine days when the radio in the lighthouse answered a question he had only thought.",
    ),
    (
        "bread",
        "Explain to a curious ten-year-old why bread dough rises and what happens to the bubbles in the oven.",
    ),
    (
        "letter",
        "Write a short letter to a neighbour whose apple tree drops its fruit on your side of the fence. Be kind and a little funny.",
    ),
    (
        "night-train",
        "Describe a night train crossing a border in winter, seen by a passenger who cannot sleep.",
    ),
    ("tides", "Why are there two high tides a day and not one? Answer in plain words."),
    (
        "clockmaker",
        "Continue the story: In the town of seven bridges every clock ran late, and only the clockmaker's daughter knew why.",
    ),
    (
        "advice",
        "A friend has been offered a better job in a city she dislikes. What questions should she ask herself before she decides?",
    ),
    (
        "volcano",
        "Tell how an island is born from an undersea volcano and how the first plants reach it.",
    ),
    (
        "market",
        "Describe the fish market of a small harbour at five in the morning using all the senses except sight.",
    ),
    (
        "chess",
        "What can a beginner learn from losing a game of chess? Give three thoughts, each in a sentence or two.",
    ),
    (
        "river",
        "Continue the story: When the river was drained for repairs they found a piano standing upright in the mud, in tune.",
    ),
    ("sleep", "Summarise what is known about why animals sleep, and say what is not known."),
    (
        "museum",
        "Write the label of a museum case that shows a single worn shoe from the year 1912.",
    ),
    ("bees", "How does a honey bee tell the others where the flowers are? Describe the dance."),
    ("storm", "A sailor writes in his diary after the worst storm of his life. Write the entry."),
    (
        "translator",
        "What does a translator of poems lose, and what can she gain? Argue for both sides.",
    ),
    (
        "moon-garden",
        "Continue the story: The first tomato grown on the moon was stolen within the hour.",
    ),
    (
        "debate",
        "Give the best argument for and the best argument against letting towns ban private cars from their centres.",
    ),
    ("grandmother", "Portray a grandmother who repairs radios, in a single paragraph."),
    ("glass", "How is window glass made today, from sand to pane?"),
    ("orchestra", "Explain what a conductor does that the musicians could not do without one."),
    ("desert", "Describe the hour before sunrise in a stone desert, and the animals that use it."),
    ("apology", "Write the apology of a weather forecaster who promised sun for a wedding."),
    (
        "library",
        "Continue the story: The library lent out not books but afternoons, and mine was overdue.",
    ),
    ("snow", "Why does fresh snow make a street so quiet?"),
    ("mountain-hut", "Write house rules for a mountain hut, strict but warm-hearted."),
)


def build() -> tuple[Prompt, ...]:
    """Return one prompt per question."""
    return tuple(Prompt(f"prose-{name}", "prose", chat([("user", text)])) for name, text in _ASKED)
