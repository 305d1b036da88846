"""The streaming interface that the benchmark uses: what to ask, the lean client, and the official client's list of models."""

from __future__ import annotations

from bench.lean import run, stream
from bench.openai_stream import served_models
from bench.request import INTERRUPTED, Deadlines, Dialect, Endpoint, Listener, Request

__all__ = ["INTERRUPTED", "Deadlines", "Dialect", "Endpoint", "Listener", "Request", "run", "served_models", "stream"]
