"""Direction files: safetensors with the tensor "direction", or the public recipe's .pt with "directions".

Either is one vector [hidden] (also [1, hidden]) for all layers, or [layers, hidden], one for each.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vllm_glm_exl3.ablation.formula import vector
from vllm_glm_exl3.errors import BadAblation

KEY, PT_KEY = "direction", "directions"


@dataclass(frozen=True)
class Direction:
    """`vectors`: fp32 [hidden] or [layers, hidden], finite and not zero; `sha256` of the file; `metadata` as the file has it."""

    vectors: Tensor
    sha256: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> int:
        return int(self.vectors.shape[-1])

    def of(self, layer: int) -> Tensor:
        """fp32 [hidden] for a layer. Raises BadAblation if the file has vectors per layer and none for this one."""
        if self.vectors.dim() == 1:
            return self.vectors
        if not 0 <= layer < self.vectors.shape[0]:
            raise BadAblation(f"the direction file has vectors for layers 0 to {self.vectors.shape[0] - 1}, and none for layer {layer}")
        return vector(self.vectors[layer])


def read(path: Path) -> Direction:
    """Raises BadAblation naming the file: not there, another format or a damaged one, no such tensor, wrong rank, zero or not finite.

    Of vectors per layer only the shape and that all are finite is checked; a layer that is not edited may have a zero one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadAblation(f"the direction file {path} cannot be read: {error.strerror}") from error
    tensor, metadata = _pt(path) if path.suffix == ".pt" else _safetensors(path)
    try:
        vectors = _vectors(tensor)
    except BadAblation as error:
        raise BadAblation(f"{path}: {error}") from None
    except Exception as error:  # a sparse, quantised or four-bit tensor: torch has no such sum of it
        raise BadAblation(f"{path}: its {tensor.dtype} tensor cannot be read as a direction: {_first_line(error)}") from error
    if metadata.get("hidden", str(vectors.shape[-1])) != str(vectors.shape[-1]):
        raise BadAblation(f"{path}: its metadata says hidden {metadata['hidden']}, and its vectors have {vectors.shape[-1]} values")
    return Direction(vectors, hashlib.sha256(content).hexdigest(), metadata)


def write(path: Path, vectors: Tensor, metadata: Mapping[str, str]) -> Direction:
    """Write [hidden] or [layers, hidden] as safetensors, with `metadata` and its hidden size; returns what `read` finds there.

    What was there is replaced as a whole or stays. Raises BadAblation for vectors that are no direction, OSError.
    """
    kept = _vectors(vectors).cpu().contiguous()
    content = save({KEY: kept}, metadata={**metadata, "hidden": str(kept.shape[-1])})
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return read(path)


def _vectors(tensor: Tensor) -> Tensor:
    if tensor.dim() != 2 or tensor.shape[0] == 1:
        return vector(tensor)
    if not tensor.numel() or not bool(tensor.isfinite().all()):
        raise BadAblation("the directions are empty or have values that are not finite")
    return tensor.detach().float()


def _safetensors(path: Path) -> tuple[Tensor, dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            if KEY not in file.keys():  # noqa: SIM118 (not a dict)
                raise BadAblation(f'{path} has no tensor "{KEY}" but {", ".join(sorted(file.keys())) or "nothing"}')
            return file.get_tensor(KEY), dict(file.metadata() or {})
    except BadAblation:
        raise
    except Exception as error:  # beside SafetensorError whatever torch makes of a type that it does not have
        raise BadAblation(f"{path} is no safetensors file: {_first_line(error)}") from error


def _pt(path: Path) -> tuple[Tensor, dict[str, str]]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler trips over foreign bytes with KeyError, IndexError, struct.error and others
        raise BadAblation(f"{path} cannot be loaded: it is no file of torch.save, or a damaged one ({_first_line(error)})") from error
    found = content.get(PT_KEY) if isinstance(content, dict) else None
    if not isinstance(found, Tensor):
        raise BadAblation(f'{path} has no tensor "{PT_KEY}"')
    return found, {}


def _first_line(error: Exception) -> str:
    """Torch's messages are long, and some exceptions say nothing of themselves but a number."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
