"""What a local checkpoint folder really holds, read from its safetensors headers (no tensor is read), and whether that is what
its configuration says. Everything wrong is found here, before a GPU is touched or a worker is started.

Source of the file format: 8 bytes little-endian header length, then JSON {name: {"dtype", "shape", "data_offsets"}}.
"""

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.spec import LINEAR, ROUTED, Spec, short_name

INDEX = "model.safetensors.index.json"
ROUTED_EXPERT = re.compile(r"\.experts\.\d+\.(gate|up|down)_proj$")
PROJECTIONS = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}
# vLLM 0.32 builds these of GLM-5.3-Flash without a quantization config, so nothing would load their EXL3 tensors
GLM_DENSE = re.compile(r"^layers\.\d+\.(self_attn|linear_attn)\.")
GLM_TYPES = ("glm5_next", "glm5_next_text")
OLD_SIGNS = (".su", ".sv")
SHOWN = 3


@dataclass(frozen=True)
class Module:
    """One EXL3 weight in the files: bits per weight (K), its sizes [in, out], its codebook's marker."""

    bits: float
    shape: tuple[int, int]
    codebook: str


@dataclass(frozen=True)
class Stored:
    """`modules`: EXL3 modules by short name; `names`: every other tensor's short name."""

    modules: Mapping[str, Module]
    names: frozenset[str]

    @cached_property
    def routed_bits(self) -> dict[tuple[str, str], set[float]]:
        """(module of the experts, "gate_up_proj" or "down_proj") -> every K found there; "layers.3.mlp.experts" is such a module."""
        found: dict[tuple[str, str], set[float]] = defaultdict(set)
        for name, module in self.modules.items():
            if expert := ROUTED_EXPERT.search(name):
                found[name[: expert.start()] + ".experts", PROJECTIONS[expert[1]]].add(module.bits)
        return found


def read(folder: Path) -> Stored:
    """Raises UnknownPack if the index and the files disagree: vLLM would leave tensors uninitialised without a word."""
    headers = {file.name: _header(file) for file in sorted(folder.glob("*.safetensors"))}
    _check_index(folder / INDEX, headers)
    tensors = {short_name(name): entry["shape"] for header in headers.values() for name, entry in header.items()}
    modules = {
        name.removesuffix(".trellis"): _module(name.removesuffix(".trellis"), tensors) for name in tensors if name.endswith(".trellis")
    }
    return Stored(modules, frozenset(name for name in tensors if name.rpartition(".")[0] not in modules))


def _header(file: Path) -> dict[str, dict[str, list[int]]]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return dict(header)


def _module(name: str, tensors: Mapping[str, list[int]]) -> Module:
    tiles = tensors[f"{name}.trellis"]
    marked = [book for book in ("mcg", "mul1") if f"{name}.{book}" in tensors]
    if len(tiles) != 3 or len(marked) > 1 or any(f"{name}{old}" in tensors for old in OLD_SIGNS):
        raise UnknownPack(f"{name}: not an EXL3 weight this plugin reads (trellis {tiles}, markers {marked}, or old su/sv signs)")
    return Module(tiles[2] / 16, (tiles[0] * 16, tiles[1] * 16), marked[0] if marked else "3inst")


def _check_index(index: Path, headers: Mapping[str, Mapping[str, object]]) -> None:
    if not index.exists():
        return
    listed = json.loads(index.read_text())["weight_map"]
    if missing := sorted(set(listed.values()) - set(headers)):
        raise UnknownPack(f"{index}: lists {len(missing)} files that are not there: {_some(missing)}")
    unlisted = sorted({name for header in headers.values() for name in header} - set(listed))
    if unlisted:
        raise UnknownPack(
            f"{index}: does not list {len(unlisted)} tensors that are in the files, and vLLM would skip them: {_some(unlisted)}"
        )


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def check(spec: Spec, stored: Stored, model_type: str = "") -> None:
    """Raise UnknownPack where the files are not what `spec` declares, or hold what this plugin does not serve."""
    dense = sorted(name for name in stored.modules if not ROUTED_EXPERT.search(name))
    _refuse_fractional(stored)
    _refuse_dense(spec, dense, model_type)
    _compare(spec, stored)
    _check_non_routed(spec, stored)


def _refuse_fractional(stored: Stored) -> None:
    fractional = sorted(name for name, module in stored.modules.items() if module.bits != int(module.bits))
    if fractional:
        bits = stored.modules[fractional[0]].bits
        raise UnknownPack(f"fractional K is not supported: {len(fractional)} modules, first {fractional[0]} with {bits:g} bits per weight")


def _refuse_dense(spec: Spec, dense: list[str], model_type: str) -> None:
    if dense and LINEAR not in spec.scope:
        raise UnknownPack(f"declared as routed experts only, but {len(dense)} other modules are stored in EXL3: {_some(dense)}")
    if heads := [name for name in dense if name.endswith("lm_head")]:
        raise UnknownPack(f"a quantized {heads[0]} is not supported; use a pack with an unquantized one")
    if model_type in GLM_TYPES and (inside := [name for name in dense if GLM_DENSE.match(name)]):
        raise UnknownPack(f"dense EXL3 is not supported for {model_type}: vLLM 0.32 builds its attention unquantized: {_some(inside)}")


def _compare(spec: Spec, stored: Stored) -> None:
    if ROUTED in spec.scope and spec.scope == {ROUTED} and not stored.modules:
        raise UnknownPack("declared as EXL3 routed experts, but the files hold no EXL3 tensor")
    for name, module in sorted(stored.modules.items()):
        if spec.codebook is not None and module.codebook != spec.codebook:
            raise UnknownPack(f"{name}: stored with codebook {module.codebook}, while the configuration says {spec.codebook}")
        declared = _declared(spec, name)
        if declared is not None and declared != module.bits:
            raise UnknownPack(f"{name}: stored with {module.bits:g} bits per weight, while the configuration says {declared:g}")


def _declared(spec: Spec, name: str) -> float | None:
    """The declared K of a routed projection. A fractional `bits` is an average (exllamav3's packs) and binds no tensor."""
    found = ROUTED_EXPERT.search(name)
    bits = spec.routed_bits(name, PROJECTIONS[found[1]]) if found else None
    return bits if bits is not None and bits == int(bits) else None


def _check_non_routed(spec: Spec, stored: Stored) -> None:
    """FP8 declared for layers that hold none boots with an uninitialised scale and answers nothing."""
    if not spec.non_routed:
        return
    method = spec.non_routed.get("quant_method")
    if method == "fp8" and not any(name.endswith((".weight_scale", ".weight_scale_inv")) for name in stored.names):
        raise UnknownPack("non_routed_quantization says fp8, but no tensor of the files is an FP8 scale: the other layers are unquantized")
