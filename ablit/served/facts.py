"""What a receipt keeps of a point that was measured on a served model, beside what every point has."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic

from ablit.spec import EditSpec, Value, shown

RATIO_TOLERANCE = 2e-2  # of the signed ratio, in parts of alpha: what rounding to bfloat16 leaves (as cluster/boot/ablation.py has it)


class RankEdit(Value):
    """What one rank reported of its edit at load, as the launcher read it from its log. `part`: model or mtp. `source`: sha256 of the
    direction file. Pairs are [least, most] over the layers; `ratio` is 1 - alpha."""

    rank: int
    world: int
    part: str
    method: str
    alpha: float | None
    layers: str
    source: str
    ratio: tuple[float, float] | None
    rel_l2: tuple[float, float]


class Speculation(Value):
    """The server's own counters over the answers to the held-out prompts. accepted_per_position: accepted drafts at position 0, 1, ..."""

    drafts: int = pydantic.Field(gt=0)
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]

    @property
    def length(self) -> float:
        """Acceptance length: tokens of a step, 1 + accepted / drafts."""
        return 1 + self.accepted_tokens / self.drafts


class Speed(Value):
    """Decode throughput of one request in the phase prose, tokens per second; `receipt`: id of the performance receipt beside."""

    decode_tok_s: float | None
    receipt: str


class Boot(Value):
    """One start of the kit, and what only a running server can tell."""

    boot: str
    speculation: Speculation | None
    speed: Speed | None


class Floor(Value):
    """The noise floor: KL(stock || stock of the boot `boot`) over the same windows, nats, in the same form."""

    boot: str
    mean: float
    max_window_mean: float


class Served(Value):
    """A point of a served model. `ranks`: how many; `image`: identity of the container image. `k`: of the top-k form, in which KLD is a
    lower bound and 1 - TV an upper one. `settings_sha256`: of all settings that shape the server, the edit left out."""

    kit: str
    engine: str
    ranks: int = pydantic.Field(gt=0)
    image: str | None
    settings_sha256: str = pydantic.Field(pattern=r"^[0-9a-f]{64}$")
    k: int = pydantic.Field(gt=0)
    stock: Boot
    edited: Boot
    edits: tuple[RankEdit, ...]
    floor: Floor


def problems(served: Served, spec: EditSpec, decoders: int, source: str | None) -> list[str]:
    """What the ranks' reports contradict. `decoders`: layers of the model without an MTP block; `source`: sha256 of the direction."""
    if served.stock.boot == served.edited.boot:
        return ["the edited model was measured on the boot of the stock pass"]
    if spec.is_null:
        return ["the unedited twin was edited"] if served.edits else []
    of_model = [edit for edit in served.edits if edit.part == "model"]
    if sorted(edit.rank for edit in of_model) != list(range(served.ranks)):
        return [f"{len(of_model)} ranks reported an edit of the model, there are {served.ranks}"]
    return [wrong for edit in served.edits if (wrong := _missed(edit, served, spec, decoders, source))]


def _missed(edit: RankEdit, served: Served, spec: EditSpec, decoders: int, source: str | None) -> str | None:
    asked = [layer for layer in spec.layers if (layer < decoders) == (edit.part == "model")]
    wanted = ("proj", spec.alpha, shown(asked), source, served.ranks)
    found = (edit.method, edit.alpha, edit.layers, edit.source, edit.world)
    for name, left, right in zip(("method", "alpha", "layers", "direction", "world size"), found, wanted, strict=True):
        if left != right:
            return f"rank {edit.rank} {edit.part}: its edit has {name} {left}, not {right}"
    if not _near(edit.ratio, spec.alpha):
        return f"rank {edit.rank} {edit.part}: signed ratios {edit.ratio}, alpha {spec.alpha:g} gives {1 - spec.alpha:g}"
    return None


def _near(ratio: Sequence[float] | None, alpha: float) -> bool:
    return ratio is not None and all(abs(each - (1 - alpha)) <= RATIO_TOLERANCE * max(1.0, alpha) for each in ratio)
