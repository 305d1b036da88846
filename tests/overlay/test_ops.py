"""The operators on the CPU: against a product with written-out weights, traced whole, and with other ranks' experts."""

import pytest
import torch
from torch import Tensor
from vllm_glm_exl3 import codec, moe_torch, ops, routing
from vllm_glm_exl3.experts import swiglu

EXPERTS, HIDDEN, INNER, TOP_K = 6, 256, 128, 3


@pytest.fixture(scope="module")
def layer() -> tuple[Tensor, ...]:
    torch.manual_seed(5)

    def bits(*shape: int) -> Tensor:
        return torch.randint(-32768, 32768, shape, dtype=torch.int32).to(torch.int16)

    gate_up = (
        bits(EXPERTS, 2, HIDDEN // 16, INNER // 16, 48),
        (torch.randn(EXPERTS, 2, HIDDEN) * 0.05).half(),
        torch.randn(EXPERTS, 2, INNER).half(),
    )
    return (
        *gate_up,
        bits(EXPERTS, INNER // 16, HIDDEN // 16, 80),
        (torch.randn(EXPERTS, INNER) * 0.05).half(),
        torch.randn(EXPERTS, HIDDEN).half(),
    )


def routed(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)])
    return torch.randn(tokens, HIDDEN), ids.to(torch.int32), torch.rand(tokens, TOP_K)


def run(layer: tuple[Tensor, ...], given: tuple[Tensor, Tensor, Tensor], owners: Tensor | None = None, limit: float = 0.0) -> Tensor:
    return torch.ops.vllm_glm_exl3.moe(*given, owners, *layer, None, codec.MCG, limit, "torch", 128, False)


def wanted(layer: tuple[Tensor, ...], given: tuple[Tensor, Tensor, Tensor], own: set[int], limit: float = 0.0) -> Tensor:
    """Token by token and expert by expert, with dense weights."""
    x, ids, weights = given
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for place, expert in enumerate(ids[token].tolist()):
            if expert in own:
                gate, up = (
                    codec.weight(layer[0][expert, half], layer[1][expert, half], layer[2][expert, half], codec.MCG) for half in (0, 1)
                )
                down = codec.weight(layer[3][expert], layer[4][expert], layer[5][expert], codec.MCG)
                out[token] += weights[token, place] * (swiglu(x[token] @ gate, x[token] @ up, limit) @ down)
    return out


def close(found: Tensor, reference: Tensor) -> bool:
    return float((found - reference).norm() / reference.norm()) < 1e-5


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_moe(layer: tuple[Tensor, ...], tokens: int, limit: float) -> None:
    given = routed(tokens)
    reference = wanted(layer, given, set(range(EXPERTS)), limit)
    assert close(run(layer, given, limit=limit), reference)
    assert limit == 0 or not close(run(layer, given), reference)


def test_limits() -> None:
    gate, up = torch.tensor([9.0, -9.0, 1.0]), torch.tensor([9.0, -9.0, 0.5])
    # silu(7) * 7, silu(-9) * -7 (gate is held from above only), silu(1) / 2
    assert swiglu(gate, up, 7.0).tolist() == pytest.approx([48.955363, 0.0077741, 0.3655293], rel=1e-4)
    assert swiglu(gate, up, 0.0).tolist() == pytest.approx([80.990005, 0.0099953, 0.3655293], rel=1e-4)


def test_groups_of_experts(layer: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    given = routed(9)
    whole = run(layer, given)
    monkeypatch.setattr(moe_torch, "DECODED_BYTES", 1)  # one expert at a time
    assert close(run(layer, given), whole)


def test_other_ranks_experts_and_padding_add_nothing(layer: tuple[Tensor, ...]) -> None:
    x, ids, weights = routed(5)
    ids[0, 0] = -1
    owners = torch.tensor([-1, 0, -1, 1, -1, 2], dtype=torch.int32)
    half = tuple(stack[1::2].contiguous() for stack in layer)
    assert close(run(half, (x, ids, weights), owners), wanted(layer, (x, ids, weights), {1, 3, 5}))


def test_no_tokens(layer: tuple[Tensor, ...]) -> None:
    empty = torch.zeros(0, HIDDEN), torch.zeros(0, TOP_K, dtype=torch.int32), torch.zeros(0, TOP_K)
    assert run(layer, empty).shape == (0, HIDDEN)


def test_tables() -> None:
    ids, weights = torch.tensor([[2, 0], [0, 1], [-1, 2]]), torch.tensor([[0.5, 0.25], [0.75, 1.0], [9.0, 2.0]])
    found = routing.tables(ids, weights, torch.tensor([0, -1, 1]), 2)
    assert found.count.tolist() == [2, 2, 2]
    assert found.token.tolist() == [0, 1, 0, 2, 1, 2]
    assert found.weight.tolist() == [0.25, 0.75, 0.5, 2.0, 1.0, 9.0]
    assert found.expert.tolist() == [1, 0, 0, 2, 2, 1]


def test_the_graph_is_whole(layer: tuple[Tensor, ...]) -> None:
    x, ids, weights = routed(4)
    compiled = torch.compile(lambda given: run(layer, (given * 2, ids, weights)) + 1, fullgraph=True, backend="aot_eager")
    assert close(compiled(x) - 1, run(layer, (x * 2, ids, weights)))


def test_fake_implementations_fit(layer: tuple[Tensor, ...]) -> None:
    more = None, *layer, None, codec.MCG, 0.0, "torch", 128, False
    torch.library.opcheck(torch.ops.vllm_glm_exl3.moe.default, (*routed(3), *more), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(
        torch.ops.vllm_glm_exl3.linear.default, joined(torch.randn(2, 3, HIDDEN)), test_utils=("test_schema", "test_faketensor")
    )


OUTS, BITS, BOOKS = [128, 256], [3, 4], [codec.MCG, codec.INST3]


def joined(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[int], list[int]]:
    torch.manual_seed(6)
    packed = sum(HIDDEN // 16 * (out // 16) * 16 * k for out, k in zip(OUTS, BITS, strict=True))
    trellis = torch.randint(-32768, 32768, (packed,), dtype=torch.int32).to(torch.int16)
    return x, trellis, torch.randn(2, HIDDEN).half(), torch.randn(sum(OUTS)).half(), OUTS, BITS, BOOKS


def test_joined_linear() -> None:
    given = joined(torch.randn(2, 3, HIDDEN))
    x, trellis, suh, svh = given[:4]
    first, second = trellis[: 16 * 8 * 48].view(16, 8, 48), trellis[16 * 8 * 48 :].view(16, 16, 64)
    dense = [codec.weight(first, suh[0], svh[:128], codec.MCG), codec.weight(second, suh[1], svh[128:], codec.INST3)]
    found = torch.ops.vllm_glm_exl3.linear(*given)
    assert found.shape == (2, 3, 384)
    assert close(found, x @ torch.cat(dense, 1))
    assert ops.split(trellis, svh, HIDDEN, OUTS, BITS)[1][1].shape == (256,)
