"""Times of the execution paths on a CUDA device."""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from vllm_glm_exl3 import moe_fused, routing

from tests.overlay.gpu_layers import DEVICE, EXPERTS, HIDDEN, Layer, Routed, make_layer, moe, routed


def graph_us(run: Callable[[], object], repeats: int = 30) -> float:
    """Median time of one call inside a CUDA graph of ten, in microseconds."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    return event_us(graph.replay, repeats) / 10


def event_us(run: Callable[[], object], repeats: int = 10) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def copy_bytes_s() -> float:
    """Bytes read plus bytes written per second of a 4 GB copy on the device."""
    source = torch.randn(1 << 30, device=DEVICE)
    target = torch.empty_like(source)
    return 8e6 * (1 << 30) / event_us(lambda: target.copy_(source))


def bare(layer: Layer, given: Routed) -> Callable[[], None]:
    """exl3_moe alone: its tables, halves and zeroed output made before."""
    tables = routing.tables(given[1], given[2], None, EXPERTS)
    x, out, part = given[0].half(), torch.zeros(given[0].shape, device=DEVICE), layer.experts()
    halved = routing.Tables(tables.count, tables.token, tables.weight.half(), tables.expert, tables.order)
    space = moe_fused.workspace(x.device, HIDDEN, part.inner, 128)
    return lambda: moe_fused.run(x, halved, part, out, space)


def decode_calls(layers: list[Layer], given: Routed) -> dict[str, list[Callable[[], object]]]:
    """What is timed, for each of `layers`."""
    paths = {"sorted_exact": ("sorted", True), "sorted": ("sorted", False), "coop": ("coop", False), "default": ("fused", False)}
    calls: dict[str, list[Callable[[], object]]] = {"bare_exl3_moe": [bare(layer, given) for layer in layers]}
    return calls | {name: [partial(moe, layer, given, path, exact=exact) for layer in layers] for name, (path, exact) in paths.items()}


def in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [call() for call in calls]


def decode_times(inner: int, bandwidth: float) -> list[dict[str, float]]:
    layers = [make_layer(inner) for _ in range(3)]  # three times the weights, so that they do not stay in the cache
    rows = []
    for count in (1, 2, 4, 8, 16, 32, 48, 64):
        given = routed(count)
        row: dict[str, float] = {"inner": inner, "tokens": count, "active": len(given[1].unique())}
        for name, calls in decode_calls(layers, given).items():
            row[f"{name}_us"] = round(graph_us(in_turn(calls)) / len(layers), 1)
        packed = row["active"] * 3 * HIDDEN * inner * 4 / 8
        row["default_share_of_copy"] = round(packed / row["default_us"] * 1e6 / bandwidth, 3)
        rows.append(row)
        print(row, flush=True)
    return rows


def prefill_times(inner: int) -> list[dict[str, float]]:
    layer = make_layer(inner)
    rows = []
    for count in (128, 512, 1024, 2048, 4096, 7168):
        given = routed(count)
        row: dict[str, float] = {"inner": inner, "tokens": count}
        for size in (64, 128, 256, 512):
            row[f"fused_rows{size}_us"] = round(event_us(partial(moe, layer, given, "fused", rows=size), 5))
        row["loop_us"] = round(event_us(partial(moe, layer, given, "loop"), 5))
        rows.append(row)
        print(row, flush=True)
    return rows
