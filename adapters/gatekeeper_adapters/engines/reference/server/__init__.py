"""The reference engine as an OpenAI-compatible HTTP server: ``gatekeeper engine serve``."""
