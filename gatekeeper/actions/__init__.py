"""Use cases. Each owns its transaction: it happens whole, with its audit line, or not at all."""
