"""The llama engine: the `local` kit's server as argv."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from cluster.fields import Settings

DISTRIBUTION = "xllamacpp"


def argv(settings: Settings, model: Path) -> tuple[str, ...]:
    """The server's command line. Holds no secret: the API key travels as the variable LLAMA_API_KEY."""
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


def version() -> str:
    """Name and version of what serves, for receipts."""
    return f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
