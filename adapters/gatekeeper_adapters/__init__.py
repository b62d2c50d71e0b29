"""Adapters to engines, trace formats and executors."""
