"""Decisions on the request path: an answer at once, from a local copy, bypass when in doubt."""

from gatekeeper.client.decisions import DecisionClient
from gatekeeper.core.bypass import BYPASS, ENABLE, RequestContext, RequestDecision

__all__ = ["BYPASS", "ENABLE", "DecisionClient", "RequestContext", "RequestDecision"]
