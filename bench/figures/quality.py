"""Figures of quality and ablation: KLD with interval and floor, size against KLD, sweep heat map, effect against KLD.

They take plain rows (see bench.quality), so that receipts and published figures are drawn alike and told apart.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from math import nan
from statistics import fmean
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from bench.figures import style
from bench.figures.performance import WIDTH
from bench.quality import FEW_WINDOWS, AblationPoint, KldPoint

Named = TypeVar("Named", bound=Hashable)

_GB = 1e9
EFFECT = "stock rate less\nedited rate (net)"
_WIDE = 30  # times the smallest KLD: from there on the scale is logarithmic


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


def _one(things: Sequence[Named], what: str) -> Named | None:
    """What all of them are; None for no one. Raises ValueError when they differ: such points must not stand in one figure."""
    found = list(dict.fromkeys(things))
    if len(found) > 1:
        raise ValueError(f"{len(found)} {what} in one figure")
    return found[0] if found else None


def sweep_figure(points: Sequence[AblationPoint]) -> Figure:
    """Effect of one direction over layers x alpha as a heat map; each cell says its value, all of them where there are several, and has
    the colour of their mean. Controls are no part of it. Raises ValueError for points of different bases or directions."""
    edited = [point for point in points if not point.control]
    basis, _ = _one([point.basis for point in points], "bases"), _one([(p.direction, p.edit) for p in edited], "directions")
    layers, alphas = sorted({point.layers for point in edited}, key=_numbers), sorted({point.alpha for point in edited})
    figure, axes = style.axes_of(WIDTH, style.rows_height([f"{layer}\n" for layer in layers]) + 0.9)
    if not basis or not edited:
        style.nothing(axes, "no ablation yet")
        return figure
    image = _cells(axes, edited, layers, alphas)
    axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set_yticks(range(len(layers)), layers)
    axes.grid(visible=False)
    axes.set_xlabel("alpha")
    axes.set_ylabel("layers")
    style.titled(figure, f"{edited[0].direction} {edited[0].edit}".strip() + f", {basis.name}")
    figure.colorbar(image, ax=axes, label=EFFECT)
    return figure


def _cells(axes: Axes, edited: Sequence[AblationPoint], layers: Sequence[str], alphas: Sequence[float]) -> AxesImage:
    held: dict[tuple[str, float], list[float]] = {}
    for point in edited:
        held.setdefault((point.layers, point.alpha), []).append(point.effect)
    means = {place: fmean(effects) for place, effects in held.items()}
    middle = (min(means.values()) + max(means.values())) / 2
    for (layer, alpha), effects in held.items():
        shade = "white" if means[layer, alpha] < middle else "black"
        text = "\n".join(f"{effect:+.2f}" for effect in effects)
        axes.text(alphas.index(alpha), layers.index(layer), text, ha="center", va="center", fontsize=8.5, color=shade)
    return axes.imshow([[means.get((layer, alpha), nan) for alpha in alphas] for layer in layers], cmap="cividis", aspect="auto")


def _numbers(layers: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", layers)]


def pareto_figure(points: Sequence[AblationPoint]) -> Figure:
    """Effect against KLD of all edits of one basis, with both intervals; rings around those on the front, controls hollow. Raises
    ValueError for points of different bases."""
    basis = _one([point.basis for point in points], "bases")
    series = list(dict.fromkeys(_series(point) for point in sorted(points, key=lambda point: point.control)))
    figure, axes = style.axes_of(WIDTH, 4.3 + 0.22 * len(series))
    for at, name in enumerate(series):
        _pareto(axes, at, name, [point for point in points if _series(point) == name])
    _rings(axes, [point for point in points if point.front])
    axes.axhline(0, color=style.muted(), linewidth=1)
    _kld_scale(axes, points, basis.top if basis else None)
    axes.set_ylabel(EFFECT)
    if basis:
        few = f" (KLD's too narrow: fewer than {FEW_WINDOWS} windows)" if basis.windows < FEW_WINDOWS else ""
        style.titled(figure, f"{basis.name}. Lines: 95 % intervals{few}")
        figure.legend(loc="outside lower left", ncols=1)
    else:
        style.nothing(axes, "no ablation yet")
    return figure


def _rings(axes: Axes, best: Sequence[AblationPoint]) -> None:
    if best:
        xs, ys, name = [point.kld for point in best], [point.effect for point in best], f"on the front: not surely beaten, {_counted(best)}"
        axes.scatter(xs, ys, s=110, facecolors="none", edgecolors=style.ink(), linewidths=1.2, label=name, zorder=4)


def _kld_scale(axes: Axes, points: Sequence[AblationPoint], top: int | None) -> None:
    klds = [point.kld for point in points]
    if klds and min(klds) > 0 and max(klds) >= _WIDE * min(klds):
        axes.set_xscale("log")
    else:
        style.up_from_zero(axes, "x", [point.kld_high or point.kld for point in points])
    bound = f"\n(top {top} and the rest: a lower bound)" if top else ""
    axes.set_xlabel(f"KLD to the unedited twin, nats per token{bound}")


def _series(point: AblationPoint) -> str:
    return f"{'random directions (controls)' if point.control else point.direction or 'direction'} {point.edit}".strip()


def _counted(points: Sequence[AblationPoint]) -> str:
    return f"{len(points)} point{'s' if len(points) > 1 else ''}"


def _pareto(axes: Axes, at: int, name: str, points: Sequence[AblationPoint]) -> None:
    shade = style.muted() if points[0].control else style.colour(at)
    for point in points:
        if point.low is not None and point.high is not None:
            axes.vlines(point.kld, point.low, point.high, color=shade, linewidth=1, alpha=0.7)
        if point.kld_low is not None and point.kld_high is not None:
            axes.hlines(point.effect, point.kld_low, point.kld_high, color=shade, linewidth=1, alpha=0.7)
    fill = "none" if points[0].control else shade
    xs, ys, label = [point.kld for point in points], [point.effect for point in points], f"{name}, {_counted(points)}"
    axes.scatter(xs, ys, marker=style.marker(at), facecolors=fill, edgecolors=shade, label=label, zorder=3)
