"""Two servers that already run and speak OpenAI's HTTP: llama.cpp, vLLM, SGLang and others."""

from gatekeeper_adapters.engines.openai_http.provider import PROVIDER

__all__ = ["PROVIDER"]
