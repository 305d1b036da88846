"""One point: edit, measure panel and behaviour beside the unedited model, write down the facts."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ablit import panel, reply
from ablit.classify import CLASSIFIERS, Answer, coherence
from ablit.edit import Vectors, edited
from ablit.lean import Memory
from ablit.model import Loaded
from ablit.prompts import Prompts
from ablit.provenance import tool
from ablit.receipt import LayerEdit, Payload, Receipt, Side, problems, seal, summarize
from ablit.receipt import Panel as PanelFacts
from ablit.spec import EditSpec
from bench.errors import BadRequest, InvalidMeasurement
from bench.kld import windows as texts

SAMPLES = 3
_ROWS = 64  # of answers in a step: with more, the products take their time by the row


@dataclass(frozen=True)
class Ask:
    """Held-out prompts, the classifier that judges their answers, and the longest answer."""

    prompts: Prompts
    classifier: str
    reply_tokens: int = 40


@dataclass
class _StockSide:
    """The unedited model's answers to one Ask."""

    ask: Ask
    asked: reply.Chat
    state: torch.Tensor
    answers: list[Answer]


@dataclass
class Bench:
    """A loaded model with its unedited pass done once: every point is compared with that."""

    loaded: Loaded
    base: panel.Base
    windows: tuple[texts.Window, ...]
    sides: list[_StockSide]
    texts: str
    cpu_s: dict[str, float] = field(default_factory=dict)


def prepare(loaded: Loaded, asks: Sequence[Ask], per_stratum: int | None, entries: Sequence[int], say: Callable[[str], None]) -> Bench:
    """The unedited pass: panel statistics and answers. `entries`: the first layers of the edits to come.

    Raises BadRequest for an unknown classifier or an unfit model.
    """
    for ask in asks:
        if ask.classifier not in CLASSIFIERS:
            raise BadRequest(f"no classifier called {ask.classifier}\ntry: {', '.join(CLASSIFIERS)}")
    started = time.process_time()
    sealed = texts.load()
    cut = windows_of(loaded, per_stratum)
    say(f"unedited model: {sum(window.positions for window in cut):,} positions of panel {sealed.name}")
    base = panel.Base(loaded.model, cut, entries=sorted(set(entries)))
    halfway = time.process_time()
    sides = []
    for ask in asks:
        say(f"unedited model: {len(ask.prompts.texts)} answers to {ask.prompts.name}")
        asked = reply.chat(base.lean, loaded.tokenizer, ask.prompts.texts, loaded.ends)
        sides.append(_StockSide(ask, asked, *reply.answers(asked, 0, ask.reply_tokens)))
    spent = {"stock_panel": halfway - started, "stock_behaviour": time.process_time() - halfway}
    return Bench(loaded, base, cut, sides, f"{sealed.name} {sealed.sha256[:12]}", spent)


def at_once(bench: Bench) -> int:
    """How many points' answers go on together: up to _ROWS rows a step, and a gigabyte of their edited weights."""
    rows = max(len(side.ask.prompts.texts) for side in bench.sides)
    layers = bench.loaded.model.model.layers
    edited: int = sum(each.weight.nbytes for layer in layers for each in (layer.self_attn.o_proj, layer.mlp.down_proj))
    return max(1, min(_ROWS // rows, 2**30 // edited))


@dataclass(frozen=True)
class Begun:
    """A point that is measured up to its answers' first tokens. Its edit has been taken back; the answers can go on."""

    spec: EditSpec
    vectors: Vectors
    edits: tuple[LayerEdit, ...]
    panel: PanelFacts
    answers: list[tuple[torch.Tensor, Memory]]
    cpu_s: dict[str, float]


def begin(bench: Bench, spec: EditSpec, vectors: Vectors, keep: Sequence[int] = ()) -> Begun:
    """Measure one edit's panel and begin its answers; the model is unedited again afterwards. keep: as of panel.Base.measure.

    Raises BadRequest, InvalidMeasurement.
    """
    first = min(spec.layers)
    started = time.process_time()
    with edited(bench.loaded.model, spec, vectors) as edits:
        applied = time.process_time()
        distances = bench.base.measure(first, edits, keep)
        halfway = time.process_time()
        touched = {(edit.layer, edit.target) for edit in edits}
        answers = [reply.begun(side.asked, first, side.ask.reply_tokens, touched) for side in bench.sides]
    spent = {"edit": applied - started, "panel": halfway - applied, "behaviour": time.process_time() - halfway}
    return Begun(spec, vectors, edits, panel.facts(distances, bench.texts, bench.windows), answers, spent)


def finish(bench: Bench, points: Sequence[Begun]) -> list[Receipt]:
    """The rest of the points' answers, and their receipts. Raises InvalidMeasurement."""
    if not points:
        return []
    started = time.process_time()
    found = [_sides(side, [point.answers[number] for point in points]) for number, side in enumerate(bench.sides)]
    share = (time.process_time() - started) / len(points)
    return [_sealed(bench, point, behaviour, share) for point, behaviour in zip(points, zip(*found, strict=True), strict=True)]


def _sealed(bench: Bench, found: Begun, behaviour: tuple[Side, ...], share_s: float) -> Receipt:
    """share_s: CPU seconds of its part of the steps with other points."""
    spec = found.spec
    control = "twin" if spec.is_null else "random" if spec.direction.startswith("random-") else None
    spent = {**found.cpu_s, "behaviour": found.cpu_s["behaviour"] + share_s}
    payload = Payload(
        id=identity(bench, spec),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool=tool(),
        model=bench.loaded.facts,
        direction=found.vectors.facts,
        spec=spec,
        control=control,
        edits=found.edits,
        panel=found.panel,
        behaviour=behaviour,
        cpu_s={name: round(value, 3) for name, value in spent.items()},
        summary=summarize(found.panel, behaviour),
    )
    if wrong := problems(payload):
        raise InvalidMeasurement(f"point {payload.id}: {'; '.join(wrong)}")
    return seal(payload)


def identity(bench: Bench, spec: EditSpec) -> str:
    """As `identity_of`, of a bench."""
    return identity_of(basis(bench.loaded, bench.windows, [side.ask for side in bench.sides]), spec)


Basis = tuple[str, ...]  # what the points of one question have in common, known before anything is measured


def windows_of(loaded: Loaded, per_stratum: int | None) -> tuple[texts.Window, ...]:
    return texts.cut(texts.load(), lambda text: loaded.tokenizer.encode(text, add_special_tokens=False), per_stratum=per_stratum)


def basis(loaded: Loaded, windows: tuple[texts.Window, ...], asks: Sequence[Ask]) -> Basis:
    """Model, dtype, panel, then every side's prompts with their judge."""
    sides = [f"{ask.prompts.sha256} {len(ask.prompts.texts)} {ask.classifier} {ask.reply_tokens}" for ask in asks]
    return (loaded.facts.sha256, loaded.facts.dtype, panel.texts_sha256(windows), *sides)


def identity_of(basis: Basis, spec: EditSpec) -> str:
    """Twelve hex digits: the same model, panel, prompts and edit give the same; a finished point is found again by it."""
    return hashlib.sha256("\n".join([*basis[:3], spec.id, *basis[3:]]).encode()).hexdigest()[:12]


def _sides(side: _StockSide, parts: Sequence[tuple[torch.Tensor, Memory]]) -> list[Side]:
    states = [state for state, _ in parts]
    said = reply.together(side.asked, parts, side.ask.reply_tokens)
    return [_side(side, *each) for each in zip(states, said, strict=True)]


def _side(side: _StockSide, state: torch.Tensor, answers: list[Answer]) -> Side:
    judge = CLASSIFIERS[side.ask.classifier]
    return Side(
        file=side.ask.prompts.name,
        file_sha256=side.ask.prompts.sha256,
        classifier=side.ask.classifier,
        reply_tokens=side.ask.reply_tokens,
        stock="".join("01"[judge(answer)] for answer in side.answers),
        edited="".join("01"[judge(answer)] for answer in answers),
        stock_soundness="".join(coherence(answer)[0] for answer in side.answers),
        soundness="".join(coherence(answer)[0] for answer in answers),
        first_kld=tuple(round(value, 6) for value in panel.full_kld(side.asked.lean.head, side.state, state).tolist()),
        answers_sha256=hashlib.sha256("\0".join(answer.text for answer in answers).encode()).hexdigest(),
        samples=tuple(answer.text[:200] for answer in answers[:SAMPLES]),
    )
