"""A GGUF file as a transformers folder (fp32 safetensors and tokenizer), converted once. Runs in the lab environment.

Reading a GGUF with transformers takes half a minute of computing each time, most of it for the tokenizer; the converted folder loads in two
seconds. The values are those of the dequantised GGUF, exactly: nothing is rounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.errors import BadRequest, BenchError

PROVENANCE = "provenance.json"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-lab"


def converted(gguf: Path, say: Callable[[str], None]) -> Path:
    """The folder of the model in `gguf`, in the cache, named by the file's sha256; made first if it is not there whole.

    Raises BadRequest when `gguf` is no readable GGUF, BenchError when the folder cannot be kept. A failure leaves nothing.
    """
    if not gguf.is_file():
        raise BadRequest(f"no such GGUF file: {gguf}\ntry: invoke download --kit local")
    digest = sha256_of(gguf)
    home = cache() / f"{gguf.stem.split('.')[0]}-{digest[:12]}"
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with open(home.with_name(home.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _whole(home, digest):
                say(f"converting {gguf.name} to safetensors in {home} (once, 1 to 2 minutes)")
                _convert(gguf, digest, home)
    except OSError as error:
        raise BenchError(f"cannot convert {gguf.name} into {home}: {error}\ntry: free 1.5 GB, or set XDG_CACHE_HOME") from error
    return home


def _whole(home: Path, digest: str) -> bool:
    """Whether `home` was made from the GGUF with this sha256 and every file has the size it then had."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads((home / PROVENANCE).read_text())
        sizes = {name: (home / name).stat().st_size for name in known["files"]}
        return bool(known["source_sha256"] == digest and sizes == {n: f["size_bytes"] for n, f in known["files"].items()})
    return False


def _convert(gguf: Path, digest: str, home: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".convert-") as made:
        folder = Path(made) / home.name
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
            tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        except OSError:
            raise
        except Exception as error:  # transformers and gguf raise whatever their parsers trip over
            raise BadRequest(f"{gguf} cannot be read as a GGUF model: {error}") from error
        _as_plain(model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / PROVENANCE).write_text(json.dumps(_provenance(gguf, digest, folder), indent=1, sort_keys=True) + "\n")
        shutil.rmtree(home, ignore_errors=True)
        os.replace(folder, home)


def _as_plain(model: Any) -> Any:
    """The model without the mark of its former quantisation, which forbids saving; its weights are plain fp32 by now."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _provenance(gguf: Path, digest: str, folder: Path) -> dict[str, Any]:
    files = {path.name: {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in sorted(folder.iterdir())}
    made_by = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"source": gguf.name, "source_sha256": digest, "dtype": "float32", "made_by": made_by, "files": files}
