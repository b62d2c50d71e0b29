"""Trace formats, one module each."""
