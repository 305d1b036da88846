"""Slices for ranks: the parts together are the whole, byte for byte; what does not divide is refused by name and shape."""

import pytest
import torch
from vllm_glm_exl3.errors import BadSlice, UnknownPack
from vllm_glm_exl3.layout import Slice, bits_of, check_bits, part_size, put, take

TRELLIS = torch.arange(32 * 16 * 64, dtype=torch.int32).to(torch.int16).view(32, 16, 64)  # [512, 256], K = 4


@pytest.mark.parametrize(("kind", "along", "dim"), [("trellis", "in", 0), ("trellis", "out", 1), ("suh", "in", 0), ("svh", "out", 0)])
def test_parts_are_the_whole(kind: str, along: str, dim: int) -> None:
    whole = TRELLIS if kind == "trellis" else torch.arange(512 if along == "in" else 256).half()
    parts = [take(whole, kind, Slice(along, rank, 2), "w") for rank in range(2)]
    assert torch.equal(torch.cat(parts, dim), whole)
    assert parts[0].shape[dim] == whole.shape[dim] // 2


@pytest.mark.parametrize(("kind", "along"), [("suh", "out"), ("svh", "in"), ("trellis", "")])
def test_what_is_not_split_is_taken_whole(kind: str, along: str) -> None:
    whole = torch.zeros(300)
    assert take(whole, kind, Slice(along, 1, 2), "w") is whole


def test_second_of_two_parts() -> None:
    assert take(TRELLIS, "trellis", Slice("out", 1, 2), "w").data_ptr() == TRELLIS[:, 8:].data_ptr()


def test_not_whole_blocks() -> None:
    with pytest.raises(
        BadSlice, match=r"layers\.0\.mlp\.experts\.3\.up_proj\.trellis of shape \[32, 16, 64\]: 256 does not divide into 4 parts"
    ):
        take(TRELLIS, "trellis", Slice("out", 0, 4), "layers.0.mlp.experts.3.up_proj.trellis")
    assert part_size(768, 3, "w") == 256
    with pytest.raises(BadSlice, match="expert parallelism"):
        part_size(1536, 8, "w")


def test_bits() -> None:
    assert bits_of(TRELLIS, "w.trellis") == 4
    with pytest.raises(UnknownPack, match=r"w\.trellis: fractional K \(2\.5 bits"):
        bits_of(torch.zeros(8, 8, 40, dtype=torch.int16), "w.trellis")
    with pytest.raises(UnknownPack, match=r"K outside 1\.\.8 \(9 bits"):
        check_bits(9, "w")
    with pytest.raises(UnknownPack, match=r"shape \[8, 8\] is no EXL3 trellis"):
        bits_of(torch.zeros(8, 8), "w")


def test_nothing_is_converted() -> None:
    with pytest.raises(UnknownPack, match=r"w\.suh: stored as torch\.bfloat16 \[128\].*calls for torch\.float16 \[128\]"):
        put(torch.zeros(128).half(), torch.zeros(128).bfloat16(), "w.suh")
    with pytest.raises(UnknownPack, match=r"\[64\].*\[128\]"):
        put(torch.zeros(128), torch.zeros(64), "w.suh")
