"""The two operators, as torch custom ops with fake implementations: torch.compile(fullgraph=True) sees one opaque call each.

torch.ops.vllm_glm_exl3.moe     x [T, H] and its routing -> [T, H], this rank's share
torch.ops.vllm_glm_exl3.linear  x [..., in] -> [..., sum of the parts' out]
"""

import torch
from torch import Tensor

from vllm_glm_exl3 import codec, linear_cuda, moe_coop, moe_fused, moe_loop, moe_torch, routing
from vllm_glm_exl3.experts import Experts, Projections
from vllm_glm_exl3.routing import Tables

NAMESPACE = "vllm_glm_exl3"
# Up to here moe_coop, in pieces, is faster than moe_fused in one: 2 x 1054 us against 2672 us for 64 tokens (results/overlay/)
COOP_PIECES = 2
MOE = (
    "moe(Tensor x, Tensor ids, Tensor weights, Tensor? expert_map, Tensor w13_trellis, Tensor w13_suh, Tensor w13_svh,"
    " Tensor w2_trellis, Tensor w2_suh, Tensor w2_svh, Tensor? tables, int codebook, float limit, str path, int rows, bool exact)"
    " -> Tensor"
)
LINEAR = "linear(Tensor x, Tensor trellis, Tensor suh, Tensor svh, int[] outs, int[] bits, int[] codebooks) -> Tensor"


def stacked(w13: tuple[Tensor, Tensor, Tensor], w2: tuple[Tensor, Tensor, Tensor]) -> tuple[Projections, Projections, Projections]:
    """Gate and up as views of the stacked w13 [E, 2, ...], and down."""
    gate, up = (Projections(*(stack[:, half] for stack in w13)) for half in (0, 1))
    return gate, up, Projections(*w2)


def _moe(
    x: Tensor, ids: Tensor, weights: Tensor, expert_map: Tensor | None,
    w13_trellis: Tensor, w13_suh: Tensor, w13_svh: Tensor, w2_trellis: Tensor, w2_suh: Tensor, w2_svh: Tensor,
    tables: Tensor | None, codebook: int, limit: float, path: str, rows: int, exact: bool,
) -> Tensor:  # fmt: skip
    projections = stacked((w13_trellis, w13_suh, w13_svh), (w2_trellis, w2_suh, w2_svh))
    experts = Experts(*projections, codebook, limit, tables)
    if path == "coop" or (path == "fused" and ids.numel() <= COOP_PIECES * moe_coop.SLOTS):
        return moe_coop.run(x.to(torch.float16).contiguous(), ids, weights, expert_map, experts).to(x.dtype)
    if path in ("fused", "sorted") and x.shape[0] > rows and torch.cuda.is_current_stream_capturing():
        pieces = zip(x.split(rows), ids.split(rows), weights.split(rows), strict=True)
        return torch.cat(
            [_sorted(part, routing.tables(i, w, expert_map, experts.count), experts, path, rows, exact) for part, i, w in pieces]
        )
    return _sorted(x, routing.tables(ids, weights, expert_map, experts.count), experts, path, rows, exact)


def _sorted(x: Tensor, tables: Tables, experts: Experts, path: str, rows: int, exact: bool) -> Tensor:
    """The paths that take assignments in order of expert. "fused" leaves experts with more than `rows` of them to the loop."""
    if path == "torch":
        return moe_torch.run(x, tables, experts).to(x.dtype)
    half = x.to(torch.float16).contiguous()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if path != "loop":
        moe_fused.run(half, tables, experts, out, moe_fused.workspace(x.device, experts.hidden, experts.inner, rows), exact)
    if path == "loop" or x.shape[0] > rows:
        moe_loop.run(half, tables, experts, out, least=1 if path == "loop" else rows + 1)
    return out.to(x.dtype)


def _moe_fake(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _linear(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, outs: list[int], bits: list[int], codebooks: list[int]) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    parts = split(trellis, svh, rows.shape[-1], outs, bits)
    if x.is_cuda:
        half = rows.to(torch.float16).contiguous()
        results = [linear_cuda.linear(half, t, suh[i], s, codebooks[i]) for i, (t, s) in enumerate(parts)]
    else:
        results = [codec.linear(rows, t, suh[i], s, codebooks[i]) for i, (t, s) in enumerate(parts)]
    return torch.cat(results, dim=-1).to(x.dtype).view(*x.shape[:-1], svh.shape[0])


def split(trellis: Tensor, svh: Tensor, width: int, outs: list[int], bits: list[int]) -> list[tuple[Tensor, Tensor]]:
    """The flat int16 `trellis` and fp16 `svh` of a joined layer -> (trellis [in/16, out/16, 16*K], svh [out]) of each part."""
    sizes = [width // 16 * (out // 16) * 16 * k for out, k in zip(outs, bits, strict=True)]
    shapes = [(width // 16, out // 16, 16 * k) for out, k in zip(outs, bits, strict=True)]
    flat = [piece.view(shape) for piece, shape in zip(trellis.split(sizes), shapes, strict=True)]
    return list(zip(flat, svh.split(outs), strict=True))


def _linear_fake(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, *_: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], svh.shape[0]))


_library = torch.library.Library(NAMESPACE, "FRAGMENT")
for _schema, _real, _fake in ((MOE, _moe, _moe_fake), (LINEAR, _linear, _linear_fake)):
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)
