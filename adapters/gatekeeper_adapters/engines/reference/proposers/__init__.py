"""Proposers: where draft tokens come from."""
