"""Loading into stacked parameters: two ranks' parts are the slices of one rank's, and nothing wrong is taken in silence."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from vllm_glm_exl3 import codec
from vllm_glm_exl3.errors import BadSlice, UnknownPack
from vllm_glm_exl3.loading import SHARDS, ExpertLoader

from tests.overlay.models import Weight, random_weight

EXPERTS, HIDDEN, INNER, BITS = 4, 256, 512, 4
Params = dict[str, Tensor]


def every(number: int) -> int:
    return number


def parameters(experts: int, inner: int) -> Params:
    sizes = {"w13": ((experts, 2), HIDDEN, inner), "w2": ((experts,), inner, HIDDEN)}
    made: Params = {}
    for stem, (lead, wide, out) in sizes.items():
        made[f"{stem}_trellis"] = torch.zeros(*lead, wide // 16, out // 16, 16 * BITS, dtype=torch.int16)
        made[f"{stem}_suh"], made[f"{stem}_svh"] = torch.zeros(*lead, wide).half(), torch.zeros(*lead, out).half()
        made |= {f"{stem}_{marker}": torch.zeros(lead, dtype=torch.int32) for marker in ("mcg", "mul1")}
    return made


@pytest.fixture(scope="module")
def pack() -> dict[tuple[int, str], Weight]:
    torch.manual_seed(3)
    shapes = {"w1": (HIDDEN, INNER), "w3": (HIDDEN, INNER), "w2": (INNER, HIDDEN)}
    return {(expert, shard): random_weight(*shape, BITS) for expert in range(EXPERTS) for shard, shape in shapes.items()}


Pack = dict[tuple[int, str], Weight]


def load(
    pack: Pack, rank: int = 0, size: int = 1, experts: int = EXPERTS, local: Callable[[int], int] = every
) -> tuple[Params, ExpertLoader]:
    params, loader = parameters(experts, INNER // size), ExpertLoader("layers.0.mlp.experts", experts, local, rank, size)
    for (expert, shard), weight in pack.items():
        for name, tensor in weight.stored("x").items():
            target = f"{'w2' if shard == 'w2' else 'w13'}_{name.removeprefix('x.')}"
            loader(params[target], tensor, f"model.layers.0.mlp.experts.{target}", shard, expert)
    return params, loader


def test_one_rank_holds_the_tensors_as_stored(pack: Pack) -> None:
    params, loader = load(pack)
    loader.check_complete()
    assert loader.codebook("mcg") == loader.codebook(None) == codec.MCG
    assert torch.equal(params["w13_trellis"][2, 0], pack[2, "w1"].trellis)
    assert torch.equal(params["w13_trellis"][2, 1], pack[2, "w3"].trellis)
    assert torch.equal(params["w13_suh"][1, 1], pack[1, "w3"].suh)
    assert torch.equal(params["w2_svh"][3], pack[3, "w2"].svh)
    assert params["w13_mcg"].tolist() == [[-877912083, -877912083]] * 4


def test_two_ranks_hold_the_slices(pack: Pack) -> None:
    whole = load(pack)[0]
    ranks = [load(pack, rank, 2)[0] for rank in range(2)]
    dims = {"w13_trellis": 3, "w13_svh": 2, "w2_trellis": 1, "w2_suh": 1}
    for name, tensor in whole.items():
        parts = [rank[name] for rank in ranks]
        joined = torch.cat(parts, dims[name]) if name in dims else parts[0]
        assert torch.equal(joined, tensor), name
        assert name in dims or torch.equal(parts[0], parts[1]), name


def test_expert_parallel_ranks_hold_their_experts(pack: Pack) -> None:
    whole, (params, loader) = load(pack)[0], load(pack, experts=2, local=lambda number: {1: 0, 3: 1}.get(number, -1))
    loader.check_complete()
    assert all(torch.equal(params[name], tensor[1::2]) for name, tensor in whole.items())
    assert loader(params["w2_svh"], pack[0, "w2"].svh, "w2_svh", "w2", 0, return_success=True) is False
    assert loader(params["w2_svh"], pack[3, "w2"].svh, "w2_svh", "w2", 3, return_success=True) is True


def test_a_part_that_cuts_a_block(pack: Pack) -> None:
    with pytest.raises(
        BadSlice, match=r"layers\.0\.mlp\.experts\.0\.gate_proj\.trellis of shape \[16, 32, 64\]: 512 does not divide into 8 parts"
    ):
        load(pack, 0, 8)


def test_missing_tensors(pack: Pack) -> None:
    _, loader = load({key: weight for key, weight in pack.items() if key != (2, "w3")})
    with pytest.raises(UnknownPack, match=r"3 of 36 tensors were not in the checkpoint, first up_proj\.suh of this rank's expert 2"):
        loader.check_complete()


def give(pack: Pack, tensor: Tensor, kind: str = "trellis") -> None:
    params, loader = load(pack)
    loader(params[f"w13_{kind}"], tensor, f"w13_{kind}", "w1", 1)


@pytest.mark.parametrize(
    ("kind", "tensor", "said"),
    [
        (
            "trellis",
            torch.zeros(16, 32, 48, dtype=torch.int16),
            "experts.1.gate_proj.trellis: stored with 3 bits per weight, while the configuration says 4",
        ),
        ("trellis", torch.zeros(16, 32, 56, dtype=torch.int16), "experts.1.gate_proj.trellis: fractional K (3.5 bits per weight)"),
        ("trellis", torch.zeros(16, 16, 64, dtype=torch.int16), "experts.1.gate_proj.trellis: stored as torch.int16 [16, 16, 64]"),
        ("suh", torch.zeros(HIDDEN).bfloat16(), "experts.1.gate_proj.suh: stored as torch.bfloat16 [256]"),
        ("mcg", torch.tensor(7), "experts.1.gate_proj.mcg: holds 0x7, and only 0xcbac1fed is known"),
    ],
)
def test_wrong_tensors_are_named(pack: Pack, kind: str, tensor: Tensor, said: str) -> None:
    with pytest.raises(UnknownPack, match=re.escape(said)):
        give(pack, tensor, kind)


def test_codebooks_must_agree(pack: Pack) -> None:
    _, loader = load(pack)
    with pytest.raises(UnknownPack, match="in codebook mcg, while the configuration says mul1"):
        loader.codebook("mul1")
    loader.seen.remove((1, "w2", "mcg"))
    with pytest.raises(UnknownPack, match=r"experts in different codebooks \(3inst, mcg\)"):
        loader.codebook(None)
    loader.seen -= {(expert, shard, "mcg") for expert in range(EXPERTS) for shard in SHARDS}
    assert loader.codebook(None) == codec.INST3
