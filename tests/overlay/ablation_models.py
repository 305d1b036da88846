"""Small models and an edit for the tests of ablation at load."""

from pathlib import Path

import torch
from torch import Tensor, nn
from vllm_glm_exl3.ablation import direction, edit, settings

OUT, WIDE, LAYERS = 24, 30, 6


class Proj(nn.Module):
    """As vLLM's RowParallelLinear is seen from here."""

    def __init__(self, weight: Tensor, ranks: int = 1, rank: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.tp_size, self.tp_rank = ranks, rank


def weights() -> list[Tensor]:
    made = torch.Generator().manual_seed(3)
    return [torch.randn(OUT, WIDE, generator=made).to(torch.bfloat16) for _ in range(LAYERS)]


def model(ranks: int = 1, rank: int = 0, mtp: bool = False) -> nn.Module:
    """model.layers.N.self_attn.o_proj, or model.layers.N.mtp_block.self_attn.o_proj; this rank's columns."""
    part = WIDE // ranks
    layers = nn.ModuleDict()
    for number, weight in enumerate(weights()):
        block, attention = nn.Module(), nn.Module()
        attention.o_proj = Proj(weight[:, rank * part : (rank + 1) * part].clone(), ranks, rank)
        attention.again = attention.o_proj  # as GLM's attention has it twice
        block.self_attn = attention
        holder = nn.Module()
        holder.mtp_block = block
        layers[str(number)] = holder if mtp else block
    root, inner = nn.Module(), nn.Module()
    inner.layers, root.model = layers, inner
    return root


def o_proj(whole: nn.Module, layer: int) -> Tensor:
    found: Tensor = whole.get_submodule(f"model.layers.{layer}.self_attn.o_proj").weight.data
    return found


def wanted_in(folder: Path) -> settings.Wanted:
    """Layers 2 to 4 along a direction that lies in the folder."""
    made = direction.write(folder / "r.safetensors", torch.linspace(-1, 2, OUT), {})
    assert made.hidden == OUT
    return settings.read({"ABLIT_LAYERS": "2-4", "ABLIT_DIRECTION": str(folder / "r.safetensors"), "ABLIT_DIR": str(folder)})


def applied(whole: nn.Module, wanted: settings.Wanted, layers: tuple[int, ...] = (2, 3, 4)) -> list[edit.Change]:
    return edit.apply(edit.targets(whole, layers, mtp=False), edit.method(wanted))
