"""Every execution path on a real GPU against the pure-torch reference, then timed; one JSON receipt.

    python -m tests.overlay.gpu_checks RECEIPT.json [--commit HASH] [--quick]

Needs a CUDA device, exllamav3_ext and vllm_glm_exl3 on the path; not vLLM. Weights are random trellis bits: any pattern decodes.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm_glm_exl3 import __version__, codec, ext, linear_cuda, moe_coop
from vllm_glm_exl3.loading import ExpertLoader

from tests.overlay.gpu_layers import (
    DEVICE,
    EXPERTS,
    HIDDEN,
    INNERS,
    TOP_K,
    Layer,
    Routed,
    bits16,
    make_layer,
    moe,
    relative,
    routed,
    scales,
)
from tests.overlay.gpu_times import copy_bytes_s, decode_times, prefill_times

TOKENS = (1, 2, 8, 16, 32, 33, 64, 128, 129, 256, 512)
ALLOWED = 2e-3  # fp16 against fp32, norm of the difference over norm


# --- correctness: each yields (what, relative error or 0/1 for "bits differ", allowed) ---

Check = tuple[str, float, float]
Part = Callable[[], Iterator[Check]]


def decode() -> Iterator[Check]:
    for name, codebook in codec.CODEBOOKS.items():
        for bits in range(1, 9):
            trellis = bits16(16, 32, 16 * bits)
            found = torch.empty(256, 512, dtype=torch.float16, device=DEVICE)
            ext.load().reconstruct(found, trellis, float(bits), *ext.flags(codebook))
            differ = not torch.equal(found.view(torch.int16), codec.inner(trellis, codebook).view(torch.int16))
            yield f"reconstruct {name} K={bits}: bits differ", float(differ), 0.0


def linear() -> Iterator[Check]:
    for name, codebook in codec.CODEBOOKS.items():
        for bits in (2, 3, 4, 6, 8):
            weights = bits16(HIDDEN // 16, 1024 // 16, 16 * bits), scales(HIDDEN, gain=0.02), scales(1024)
            for rows in (1, 7, 16, 144, 145, 512):
                x = torch.randn(rows, HIDDEN, device=DEVICE).half()
                found = linear_cuda.linear(x, *weights, codebook)
                yield f"linear {name} K={bits} rows={rows}", relative(found, codec.linear(x, *weights, codebook)), ALLOWED


def joined_linear() -> Iterator[Check]:
    """The operator on a layer of three parts with different K and codebooks, in a graph and compiled."""
    outs, bits, books = [512, 128, 256], [4, 3, 6], [codec.MCG, codec.MUL1, codec.INST3]
    parts = [bits16(HIDDEN // 16, out // 16, 16 * k) for out, k in zip(outs, bits, strict=True)]
    suh, svh, x = scales(3, HIDDEN, gain=0.02), scales(sum(outs)), torch.randn(9, HIDDEN, device=DEVICE).bfloat16()
    trellis = torch.cat([part.flatten() for part in parts])
    wanted = torch.cat([codec.linear(x, p, suh[i], s, books[i]) for i, (p, s) in enumerate(zip(parts, svh.split(outs), strict=True))], -1)
    run = lambda given: torch.ops.vllm_glm_exl3.linear(given, trellis, suh, svh, outs, bits, books)  # noqa: E731
    yield "joined linear", relative(run(x), wanted), 5e-3
    yield "joined linear, CUDA graph", relative(replayed(run, x), wanted), 5e-3
    yield "joined linear, compiled fullgraph", relative(torch.compile(run, fullgraph=True)(x), wanted), 5e-3


def experts(inner: int, tokens: tuple[int, ...]) -> Iterator[Check]:
    layer = make_layer(inner)
    for count in tokens:
        given = routed(count)
        for limit in (0.0, 7.0) if count in (1, 33) else (0.0,):
            wanted = moe(layer, (given[0].float(), *given[1:]), "torch", limit)
            for path in ("sorted", "loop", "coop") if count * TOP_K <= moe_coop.SLOTS else ("sorted", "loop"):
                found = moe(layer, (given[0].float(), *given[1:]), path, limit)
                yield f"moe {path} inner={inner} tokens={count} limit={limit:g}", relative(found, wanted), ALLOWED


def other_packs() -> Iterator[Check]:
    """Other K and codebooks, different K for gate/up and down, on a smaller layer; 3INST has no kernel but the loop's and coop's."""
    for name, codebook in codec.CODEBOOKS.items():
        for bits in (2, 3, 4, 5, 6, 8):
            layer = make_layer(512, bits, experts=16, hidden=1024, codebook=codebook)
            for count in (5, 40):
                given = routed(count, 16, 4, 1024)
                wanted = moe(layer, (given[0].float(), *given[1:]), "torch")
                for path in ("loop", "coop") if codebook == codec.INST3 else ("sorted", "loop", "coop"):
                    yield (
                        f"moe {path} {name} K={bits} tokens={count}",
                        relative(moe(layer, (given[0].float(), *given[1:]), path), wanted),
                        ALLOWED,
                    )


def crowded() -> Iterator[Check]:
    """More tokens on one expert than the fused kernel takes: the rest goes to the loop, or to pieces while a graph is captured."""
    layer = make_layer(1024, experts=16)
    x, ids, weights = routed(400, 15, 3)
    ids = torch.cat([torch.full_like(ids[:, :1], 3), ids + (ids >= 3).int()], dim=1)
    given = x, ids, torch.cat([weights, weights[:, :1]], dim=1)
    wanted = moe(layer, given, "torch")
    yield "moe fused, 400 tokens on one expert, rows=32", relative(moe(layer, given, "fused", rows=32), wanted), 5e-3
    yield "moe fused, exact, the same", relative(moe(layer, given, "fused", rows=32, exact=True), wanted), 5e-3
    captured = replayed(lambda x: moe(layer, (x, *given[1:]), "fused", rows=128), given[0])
    yield "moe fused, captured in pieces of 128", relative(captured, wanted), 5e-3


def half_of_the_experts() -> Iterator[Check]:
    """Expert parallelism: this rank holds every second expert; an id of -1 is padding."""
    layer = make_layer(1024, experts=EXPERTS // 2)
    owners = torch.full((EXPERTS,), -1, dtype=torch.int32, device=DEVICE)
    owners[::2] = torch.arange(EXPERTS // 2, dtype=torch.int32, device=DEVICE)
    for count in (1, 20, 64):
        given = routed(count)
        given[1][-1, 0] = -1
        wanted = moe(layer, given, "torch", expert_map=owners)
        for path in ("sorted", "loop", "coop") if count < 64 else ("sorted", "loop"):
            yield f"moe {path}, half of the experts, tokens={count}", relative(moe(layer, given, path, expert_map=owners), wanted), 5e-3


def graphs() -> Iterator[Check]:
    layer = make_layer(1024)
    for path, count in (("coop", 1), ("coop", 8), ("coop", 32), ("sorted", 1), ("sorted", 32), ("fused", 8), ("fused", 128)):
        given = routed(count)
        wanted = moe(layer, given, "torch")
        found = replayed(calling(layer, given, path), given[0])
        yield f"moe {path} in a CUDA graph, replayed with other activations, tokens={count}", relative(found, wanted), 5e-3
        compiled = torch.compile(doubled(calling(layer, given, path)), fullgraph=True)
        yield f"moe {path}, compiled fullgraph, tokens={count}", relative(compiled(given[0] / 2) / 2, wanted), 5e-3


def calling(layer: Layer, given: Routed, path: str) -> Callable[[Tensor], Tensor]:
    """The layer as a function of the activations alone."""
    return lambda x: moe(layer, (x, *given[1:]), path)


def doubled(run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """With arithmetic on both sides, so that there is something to compile around the operator."""
    return lambda x: run(x * 2) * 2


def same_bits() -> Iterator[Check]:
    layer = make_layer(1024)
    for path, count in (("coop", 1), ("coop", 32), ("sorted", 1), ("sorted", 32), ("sorted", 128), ("loop", 64)):
        given = routed(count)
        runs = [moe(layer, given, path, exact=True) for _ in range(20)]
        yield f"moe {path} exact, 20 runs, tokens={count}: bits differ", float(any(not torch.equal(runs[0], run) for run in runs)), 0.0


def replayed(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`run` captured on other activations, then replayed with `x`."""
    static = torch.randn_like(x)
    run(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(static)
    static.copy_(x)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return out.clone()


# --- loading: nothing is ever expanded ---


def loading() -> dict[str, float]:
    """Bytes on the device while a whole layer is loaded from the host, per packed byte."""
    inner, local = 1024, 64
    shapes = {"trellis": (HIDDEN // 16, inner // 16, 64), "suh": (HIDDEN,), "svh": (inner,)}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kinds = {"trellis": torch.int16, "suh": torch.float16, "svh": torch.float16}
    params = {kind: torch.zeros(local, 2, *shape, dtype=kinds[kind], device=DEVICE) for kind, shape in shapes.items()}
    packed = torch.cuda.memory_allocated() - before
    loader = ExpertLoader("layer", local, lambda expert: expert, 0, 1)
    for expert in range(local):
        for kind, shape in shapes.items():
            for shard in ("w1", "w3"):
                loader(params[kind], torch.ones(shape, dtype=kinds[kind]), f"w13_{kind}", shard, expert)
    peak = torch.cuda.max_memory_allocated() - before
    return {"packed_bytes": packed, "peak_bytes": peak, "bf16_bytes": 2.0 * 2 * local * HIDDEN * inner}


def environment() -> dict[str, object]:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    library = Path(str(ext.load().__file__))
    return {
        "device": driver.stdout.strip(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "plugin": __version__,
        "exllamav3_ext_sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "command": " ".join(["python", "-m", "tests.overlay.gpu_checks", *sys.argv[1:]]),
        "when_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def checks(quick: bool) -> Iterator[Check]:
    yield from decode()
    yield from linear()
    yield from joined_linear()
    for inner in INNERS[:1] if quick else INNERS:
        yield from experts(inner, TOKENS[:5] if quick else TOKENS)
    for part in (other_packs, crowded, half_of_the_experts, graphs, same_bits):
        yield from part()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.overlay.gpu_checks")
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    receipt: dict[str, Any] = {"environment": environment(), "commit": args.commit, "checks": [], "failed": []}
    for what, error, allowed in checks(args.quick):
        receipt["checks"].append({"what": what, "error": error, "allowed": allowed})
        if not error <= allowed:
            receipt["failed"].append(what)
            print("FAILED", what, error, flush=True)
    print(len(receipt["checks"]), "checks,", len(receipt["failed"]), "failed", flush=True)
    receipt["loading"] = loading()
    args.receipt.write_text(json.dumps(receipt, indent=1) + "\n")
    if not args.quick:
        bandwidth = copy_bytes_s()
        receipt["copy_bytes_s"] = bandwidth
        receipt["decode"] = [row for inner in INNERS for row in decode_times(inner, bandwidth)]
        receipt["prefill"] = prefill_times(1024)
        args.receipt.write_text(json.dumps(receipt, indent=1) + "\n")
    return bool(receipt["failed"])


if __name__ == "__main__":
    sys.exit(main())
