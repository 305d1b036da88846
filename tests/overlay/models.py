"""Two models that must answer alike: the testbed's tiny Qwen3-MoE with random EXL3 experts, and its dense twin.

The twin's experts are the EXL3 ones written out in fp32, so it takes none of the plugin's code to serve it.

    python -m tests.overlay.models FOLDER        # writes FOLDER/exl3 and FOLDER/dense
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm_glm_exl3 import codec

from tests.testbed import model

DECLARED = {"quant_method": "exl3", "bits": 4, "codebook": "mcg", "scope": "routed_experts_only"}


@dataclass(frozen=True)
class Weight:
    """Random EXL3 tensors: any bit pattern decodes."""

    trellis: Tensor
    suh: Tensor
    svh: Tensor
    codebook: int = codec.MCG

    def stored(self, name: str) -> dict[str, Tensor]:
        tensors = {f"{name}.trellis": self.trellis, f"{name}.suh": self.suh, f"{name}.svh": self.svh}
        marks = {codec.MCG: ("mcg", codec.MCG_FACTOR), codec.MUL1: ("mul1", codec.MUL1_FACTOR)}
        if self.codebook in marks:
            kind, value = marks[self.codebook]
            tensors[f"{name}.{kind}"] = torch.tensor(value).to(torch.int32)
        return tensors

    def dense(self) -> Tensor:
        """fp32 [out, in], as a dense checkpoint has it."""
        return codec.weight(self.trellis, self.suh, self.svh, self.codebook).t().contiguous()


def random_weight(wide: int, out: int, bits: int = 4, codebook: int = codec.MCG, gain: float = 0.04) -> Weight:
    """[in, out] with K = `bits`; signs and scales as packs have them: suh around +-gain, svh around +-1."""
    trellis = torch.randint(-32768, 32768, (wide // 16, out // 16, 16 * bits), dtype=torch.int32).to(torch.int16)
    return Weight(trellis, _signs(wide, gain), _signs(out, 1.0), codebook)


def _signs(count: int, gain: float) -> Tensor:
    return (torch.sign(torch.randn(count)) * gain * (1 + 0.1 * torch.rand(count))).half()


def quantized(name: str, everything: bool) -> bool:
    """Which of the tiny model's tensors become EXL3: experts, or also attention's projections."""
    return ".experts." in name or (everything and ".self_attn." in name and name.endswith("_proj.weight"))


def make_twins(folder: Path, everything: bool = False, seed: int = 7) -> tuple[Path, Path]:
    """Write folder/exl3 and folder/dense; `everything`: attention in EXL3 too, its codebooks and K mixed."""
    torch.manual_seed(seed)
    base = model.make(folder / "base")
    kinds = {"q_proj": (3, codec.MUL1), "k_proj": (5, codec.MCG), "o_proj": (6, codec.INST3)} if everything else {}
    packed: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        if quantized(name, everything):
            stem = name.removesuffix(".weight")
            bits, codebook = kinds.get(stem.rpartition(".")[2], (4, codec.MCG))
            weight = random_weight(tensor.shape[1], tensor.shape[0], bits, codebook)
            packed |= weight.stored(stem)
            dense[name] = weight.dense()
        else:
            packed[name] = dense[name] = tensor.float()
    declared = {"quant_method": "exl3", "bits": 4.2, "scope": "all"} if everything else DECLARED
    return _write(base, folder / "exl3", packed, declared), _write(base, folder / "dense", dense, None)


def _write(base: Path, folder: Path, tensors: dict[str, Tensor], declared: dict[str, object] | None) -> Path:
    shutil.copytree(base, folder, dirs_exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if declared:
        config["quantization_config"] = declared
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


if __name__ == "__main__":
    print(*make_twins(Path(sys.argv[1])))
