"""Decides, route by route, whether an LLM fleet should decode speculatively."""
