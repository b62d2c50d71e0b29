"""Training drafters for a target: text of its own, three kinds of network, one distillation."""

__all__ = ["KINDS"]

KINDS = ("draft_lm", "medusa", "eagle")
"""What can be trained."""
