"""Donor weights: MANIFEST.json and one raw file L<layer>.bin each, the whole o_proj as it is without tensor parallelism."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_glm_exl3.errors import BadAblation

MANIFEST = "MANIFEST.json"
DTYPES = {"bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float32": torch.float32, "f32": torch.float32}


@dataclass(frozen=True)
class Donor:
    """One layer's file and what the manifest promises of it; `shape` is [out, in]."""

    path: Path
    sha256: str
    dtype: torch.dtype
    shape: tuple[int, int]

    def load(self) -> Tensor:
        """[out, in]. Raises BadAblation unless the file is byte for byte what the manifest says."""
        try:
            content = bytearray(self.path.read_bytes())
        except OSError as error:
            raise BadAblation(f"the donor {self.path} cannot be read: {error.strerror}") from error
        wanted = math.prod(self.shape) * self.dtype.itemsize
        if len(content) != wanted:
            raise BadAblation(f"the donor {self.path} has {len(content)} bytes, and {list(self.shape)} in {self.dtype} takes {wanted}")
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise BadAblation(f"the donor {self.path} has sha256 {found}, and the manifest says {self.sha256}")
        return torch.frombuffer(content, dtype=self.dtype).reshape(self.shape)


def read(folder: Path) -> tuple[dict[int, Donor], str]:
    """The donors by layer, and the manifest's sha256. {"layers": {"15": {"sha256", "dtype", "shape"}}}; "tensors" does for "layers".

    Raises BadAblation, also for an entry without a hash: a file of the right length proves nothing.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        plain = json.loads(content)
        entries: Mapping[str, Any] = plain.get("layers") or plain["tensors"]
        donors = {int(layer): _donor(folder, int(layer), entry) for layer, entry in entries.items()}
    except OSError as error:
        raise BadAblation(f"the manifest {path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, BadAblation):
            raise
        raise BadAblation(f"the manifest {path} is not as expected: {type(error).__name__}: {error}") from error
    return donors, hashlib.sha256(content).hexdigest()


def _donor(folder: Path, layer: int, entry: Mapping[str, Any]) -> Donor:
    dtype, digest = str(entry["dtype"]).lower().removeprefix("torch."), entry.get("sha256")
    if dtype not in DTYPES:
        raise BadAblation(f"{folder / MANIFEST}: layer {layer} has dtype {entry['dtype']!r}; known: {', '.join(DTYPES)}")
    if not digest:
        raise BadAblation(f"{folder / MANIFEST}: layer {layer} has no sha256, so its file cannot be verified; add it from its source")
    out, wide = entry["shape"]
    return Donor(folder / f"L{layer}.bin", str(digest).lower(), DTYPES[dtype], (int(out), int(wide)))
