"""The llama engine: the `local` kit's server as argv and environment."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from cluster.settings import Settings

DISTRIBUTION = "xllamacpp"


def argv(settings: Settings, model: Path) -> tuple[str, ...]:
    """The server's command line. Holds no secret: the API key travels by environment()."""
    options = {
        "model": model,
        "alias": settings.served_model_name,
        "host": settings.host,
        "port": settings.port,
        "context": settings.max_model_len,
        "parallel": settings.max_num_seqs,
        "threads": settings.threads,
        "speculation": settings.spec_method,
        "draft-tokens": settings.ngram_tokens,
        "match-tokens": settings.ngram_match,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return (sys.executable, "-m", "cluster.engines.llama_server", *words)


def environment(settings: Settings) -> dict[str, str]:
    """Variables the server needs beside the caller's own."""
    return {"LLAMA_API_KEY": settings.vllm_api_key or ""}


def version() -> str:
    """Name and version of what serves, for receipts."""
    return f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
