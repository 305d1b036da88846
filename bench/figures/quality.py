"""Figures of quality and ablation: KLD with interval and floor, size against KLD, sweep heat map, effect against KLD.

They take plain rows (see bench.quality), so that receipts and published figures are drawn alike and told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures import style
from bench.figures.performance import WIDTH
from bench.quality import AblationPoint, KldPoint, front

_GB = 1e9


def kld_figure(points: Sequence[KldPoint]) -> Figure:
    """One row per panel: the mean with its interval; a dotted line at the noise floor, where one is known. Published ones are hollow."""
    names = [_kld_name(point) for point in points]
    figure, axes = style.axes_of(WIDTH, style.rows_height(names))
    for at, point in enumerate(points):
        _kld_row(axes, at, point)
    style.named_rows(axes, names)
    style.up_from_zero(axes, "x", [point.high or point.mean for point in points])
    axes.set_xlabel("mean KLD, nats per token")
    style.titled(figure, "Filled = our receipt, hollow = published (another protocol), line = interval, dotted = noise floor")
    if not points:
        style.nothing(axes, "no KLD yet")
    return figure


def _kld_row(axes: Axes, at: int, point: KldPoint) -> None:
    shade = style.colour(0 if point.ours else 1)
    if point.low is not None and point.high is not None:
        axes.hlines(at, point.low, point.high, color=shade, linewidth=2)
    axes.plot([point.mean], [at], marker="o" if point.ours else "s", color=shade, markerfacecolor=shade if point.ours else "none")
    if point.floor is not None:
        axes.vlines(point.floor, at - 0.35, at + 0.35, color=style.ink(), linestyle=":", linewidth=1.5)


def _kld_name(point: KldPoint) -> str:
    n = f"n = {point.positions:,}" if point.positions else "n unknown"
    return f"{style.short(point.label, 24)}\n{style.short(point.protocol, 24)}\n{n}"


def size_figure(points: Sequence[KldPoint]) -> Figure:
    """Size of the weights against KLD, one series per protocol: only points of one series may be compared."""
    sized = [point for point in points if point.size_bytes]
    protocols = list(dict.fromkeys((point.ours, point.protocol) for point in sized))
    figure, axes = style.axes_of(WIDTH, 3.6 + 0.22 * len(protocols))
    for at, key in enumerate(protocols):
        some = [point for point in sized if (point.ours, point.protocol) == key]
        _sizes(axes, at, f"{'ours' if key[0] else 'published'}, {key[1]}, n = {len(some)}", some)
    style.up_from_zero(axes, "y", [point.high or point.mean for point in sized])
    axes.set_xlabel("size of the weights, GB (1e9 bytes)")
    axes.set_ylabel("mean KLD, nats per token")
    style.titled(figure, "Compare inside one series only")
    axes.margins(x=0.3)
    if protocols:
        figure.legend(loc="outside lower left")
    else:
        style.nothing(axes, "no KLD with a known size")
    return figure


def _sizes(axes: Axes, at: int, name: str, points: Sequence[KldPoint]) -> None:
    xs, ys = [(point.size_bytes or 0) / _GB for point in points], [point.mean for point in points]
    axes.scatter(xs, ys, marker=style.marker(at), color=style.colour(at), label=name, zorder=3)
    for x, y, point in zip(xs, ys, points, strict=True):
        if point.low is not None and point.high is not None:
            axes.vlines(x, point.low, point.high, color=style.colour(at), linewidth=1.5)
        axes.annotate(style.short(point.label, 18), (x, y), textcoords="offset points", xytext=(6, 5), fontsize=7.5)


def sweep_figure(points: Sequence[AblationPoint]) -> Figure:
    """Effect over layers x alpha as a heat map; each cell says its value. Controls are no part of it."""
    edited = [point for point in points if not point.control]
    layers, alphas = list(dict.fromkeys(point.layers for point in edited)), sorted({point.alpha for point in edited})
    figure, axes = style.axes_of(WIDTH, style.rows_height([f"{layer}\n" for layer in layers]) + 0.6)
    held = {(point.layers, point.alpha): point for point in edited}
    grid = [[held[key].effect if (key := (layer, alpha)) in held else float("nan") for alpha in alphas] for layer in layers]
    if not edited:
        style.nothing(axes, "no ablation yet")
        return figure
    image = axes.imshow(grid, cmap="cividis", aspect="auto")
    middle = (min(point.effect for point in edited) + max(point.effect for point in edited)) / 2
    for (layer, alpha), point in held.items():
        shade = "white" if point.effect < middle else "black"
        place = (alphas.index(alpha), layers.index(layer))
        axes.text(*place, f"{point.effect:+.2f}", ha="center", va="center", fontsize=8.5, color=shade)
    axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set_yticks(range(len(layers)), layers)
    axes.grid(visible=False)
    axes.set_xlabel("alpha")
    axes.set_ylabel("layers")
    style.titled(figure, f"Effect against the unedited twin, n = {_prompts(edited)} prompts")
    figure.colorbar(image, ax=axes, label="share of prompts changed")
    return figure


def _prompts(points: Sequence[AblationPoint]) -> str:
    return ", ".join(dict.fromkeys(str(point.prompts) for point in points if point.prompts)) or "unknown"


def pareto_figure(points: Sequence[AblationPoint]) -> Figure:
    """Effect against KLD with both intervals; the front as a line, controls as hollow points."""
    figure, axes = style.axes_of(WIDTH, 4)
    for control in (False, True):
        some = [point for point in points if point.control == control]
        _pareto(axes, some, control)
    best = front(points)
    axes.plot([point.kld for point in best], [point.effect for point in best], color=style.ink(), linewidth=1, label="front (means)")
    axes.axhline(0, color=style.muted(), linewidth=1)
    axes.set_xlabel("KLD to the unedited twin, nats per token")
    axes.set_ylabel("effect, share of prompts changed")
    style.titled(figure, "Lines = intervals")
    if points:
        figure.legend(loc="outside lower left", ncols=1)
    else:
        style.nothing(axes, "no ablation yet")
    return figure


def _pareto(axes: Axes, points: Sequence[AblationPoint], control: bool) -> None:
    shade = style.colour(1 if control else 0)
    name = f"{'random direction (control)' if control else 'direction'}, n = {len(points)}"
    for point in points:
        if point.low is not None and point.high is not None:
            axes.vlines(point.kld, point.low, point.high, color=shade, linewidth=1, alpha=0.7)
        if point.kld_low is not None and point.kld_high is not None:
            axes.hlines(point.effect, point.kld_low, point.kld_high, color=shade, linewidth=1, alpha=0.7)
    fill = "none" if control else shade
    if points:
        xs, ys = [point.kld for point in points], [point.effect for point in points]
        axes.scatter(xs, ys, marker=style.marker(int(control)), facecolors=fill, edgecolors=shade, label=name, zorder=3)
