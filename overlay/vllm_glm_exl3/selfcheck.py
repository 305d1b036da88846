"""What is installed here, and whether every execution path computes what the reference does.

    python -m vllm_glm_exl3.selfcheck        # exit 0, or 1 with the reason

On a CPU it checks the torch paths alone, on a GPU all of them: experts, and linear layers below and above the number of rows from
which the weight is decoded first. It takes a few seconds and 100 MB.
"""

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import vllm_glm_exl3
from vllm_glm_exl3 import codec, ext, linear_cuda, ops, settings
from vllm_glm_exl3.errors import NoPath
from vllm_glm_exl3.experts import pointer_tables, swiglu

EXPERTS, HIDDEN, INNER, TOP_K, BITS, LIMIT = 8, 512, 256, 4, 4, 10.0
ALLOWED = 5e-3  # fp16 against fp32


def installed() -> Iterator[str]:
    """Lines of versions; raises WrongVllm if vLLM is there in a version that this plugin does not know."""
    yield f"vllm-glm-exl3 {vllm_glm_exl3.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    try:
        found = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        yield "vllm: not installed here"
    else:
        vllm_glm_exl3.register()
        from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

        yield f"vllm {found}: exl3 {'is' if 'exl3' in QUANTIZATION_METHODS else 'IS NOT'} registered"
    yield f"settings: {settings.read()}"
    yield f"device: {_device()}; exllamav3_ext: {_extension()}"


def _device() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return "{} (compute capability {}.{})".format(torch.cuda.get_device_name(), *torch.cuda.get_device_capability())


def _extension() -> str:
    try:
        return str(ext.load().__file__)
    except NoPath as reason:
        return str(reason)


def reference(x: Tensor, ids: Tensor, weights: Tensor, w13: tuple[Tensor, ...], w2: tuple[Tensor, ...]) -> Tensor:
    """fp32 [T, H], token by token, with weights written out."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for token, expert, weight in zip(*_pairs(ids, weights), strict=True):
        gate, up = (codec.weight(w13[0][expert, half], w13[1][expert, half], w13[2][expert, half], codec.MCG) for half in (0, 1))
        down = codec.weight(w2[0][expert], w2[1][expert], w2[2][expert], codec.MCG)
        row = x[token].float()
        out[token] += weight * (swiglu(row @ gate, row @ up, LIMIT) @ down)
    return out


def _pairs(ids: Tensor, weights: Tensor) -> tuple[list[int], list[int], list[float]]:
    tokens = torch.arange(len(ids)).repeat_interleave(ids.shape[1]).tolist()
    return tokens, ids.flatten().tolist(), weights.flatten().tolist()


def errors(device: str) -> Iterator[tuple[str, float]]:
    """(path, relative error) of each path that can run here."""
    torch.manual_seed(0)
    bits = lambda *shape: torch.randint(-32768, 32768, shape, dtype=torch.int32).to(torch.int16).to(device)  # noqa: E731
    half = lambda *shape: (torch.rand(shape) * 0.05 + 0.02).half().to(device)  # noqa: E731
    w13 = bits(EXPERTS, 2, HIDDEN // 16, INNER // 16, 16 * BITS), half(EXPERTS, 2, HIDDEN), half(EXPERTS, 2, INNER) * 10
    w2 = bits(EXPERTS, INNER // 16, HIDDEN // 16, 16 * BITS), half(EXPERTS, INNER), half(EXPERTS, HIDDEN) * 10
    x, weights = torch.randn(5, HIDDEN).to(device), torch.rand(5, TOP_K).to(device)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(5)]).to(device)
    wanted = reference(x, ids, weights, w13, w2)
    cuda = device == "cuda" and ext.available()
    tables = pointer_tables(*ops.stacked(w13, w2)) if cuda else None
    for path in ("torch", "coop", "sorted", "loop") if cuda else ("torch",):
        found = torch.ops.vllm_glm_exl3.moe(x, ids, weights, None, *w13, *w2, tables, codec.MCG, LIMIT, path, 32, False)
        yield path, float((found - wanted).norm() / wanted.norm())


def linear_errors(device: str) -> Iterator[tuple[str, float]]:
    """(path, relative error) of a linear layer of two parts, with its own K and codebook each."""
    torch.manual_seed(1)
    outs, bits, books = [256, 128], [3, 4], [codec.MUL1, codec.MCG]
    sizes = [HIDDEN // 16 * (out // 16) * 16 * k for out, k in zip(outs, bits, strict=True)]
    trellis = torch.randint(-32768, 32768, (sum(sizes),), dtype=torch.int32).to(torch.int16).to(device)
    suh, svh = (torch.rand(2, HIDDEN) * 0.05 + 0.02).half().to(device), (torch.rand(sum(outs)) + 0.5).half().to(device)
    parts = ops.split(trellis, svh, HIDDEN, outs, bits)
    dense = torch.cat([codec.weight(t, suh[i], s, books[i]) for i, (t, s) in enumerate(parts)], 1)
    cuda = device == "cuda" and ext.available()
    for name, rows in (("linear", 5), ("linear, decoded first", linear_cuda.RECONSTRUCT_ROWS + 1)) if cuda else (("linear", 5),):
        x = torch.randn(rows, HIDDEN).to(device)
        found, wanted = torch.ops.vllm_glm_exl3.linear(x, trellis, suh, svh, outs, bits, books), x @ dense
        yield name, float((found - wanted).norm() / wanted.norm())


@contextmanager
def one_thread() -> Iterator[None]:
    """Small products on a CPU that others use, too: more threads wait for each other at every one of them (13 s became minutes)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> int:
    try:
        print(*installed(), sep="\n", flush=True)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with one_thread():
            found = dict(errors(device)) | (dict(linear_errors(device)) if device == "cpu" or ext.available() else {})
    except Exception as reason:
        print(f"selfcheck: {type(reason).__name__}: {reason}", file=sys.stderr)
        return 1
    print(*(f"{path}: relative error {error:.1e}" for path, error in found.items()), sep="\n")
    if wrong := [path for path, error in found.items() if not error <= ALLOWED]:
        print(f"selfcheck: {', '.join(wrong)} differ from the reference by more than {ALLOWED:g}", file=sys.stderr)
        return 1
    if device == "cuda" and not ext.available() and os.environ.get("EXL3_MOE_PATH") != "torch":
        print(f"selfcheck: there is a GPU, and {_extension()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
