"""The HTTP API: pydantic at the wire, problem+json for every error, bearer tokens."""
