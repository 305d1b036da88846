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
from ablit.model import Loaded
from ablit.prompts import Prompts
from ablit.provenance import tool
from ablit.receipt import LayerEdit, Payload, Receipt, Side, problems, seal, summarize
from ablit.receipt import Panel as PanelFacts
from ablit.spec import EditSpec
from bench.errors import BadRequest, InvalidMeasurement
from bench.kld import windows as texts

SAMPLES = 3


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


def point(bench: Bench, spec: EditSpec, vectors: Vectors, keep: Sequence[int] = ()) -> Receipt:
    """Measure one edit; the model is unedited again afterwards. keep: as of panel.Base.measure. Raises BadRequest, InvalidMeasurement."""
    first = min(spec.layers)
    started = time.process_time()
    with edited(bench.loaded.model, spec, vectors) as edits:
        applied = time.process_time()
        distances = bench.base.measure(first, edits, keep)
        halfway = time.process_time()
        behaviour = tuple(_side(side, first) for side in bench.sides)
    spent = {"edit": applied - started, "panel": halfway - applied, "behaviour": time.process_time() - halfway}
    facts = panel.facts(distances, bench.texts, bench.windows)
    found = _Found(edits, facts, behaviour, {name: round(value, 3) for name, value in spent.items()})
    return _sealed(bench, spec, vectors, found)


@dataclass(frozen=True)
class _Found:
    """What was measured of one point."""

    edits: tuple[LayerEdit, ...]
    panel: PanelFacts
    behaviour: tuple[Side, ...]
    cpu_s: dict[str, float]


def _sealed(bench: Bench, spec: EditSpec, vectors: Vectors, found: _Found) -> Receipt:
    control = "twin" if spec.is_null else "random" if spec.direction.startswith("random-") else None
    payload = Payload(
        id=identity(bench, spec),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool=tool(),
        model=bench.loaded.facts,
        direction=vectors.facts,
        spec=spec,
        control=control,
        edits=found.edits,
        panel=found.panel,
        behaviour=found.behaviour,
        cpu_s=found.cpu_s,
        summary=summarize(found.panel, found.behaviour),
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


def _side(side: _StockSide, first: int) -> Side:
    state, answers = reply.answers(side.asked, first, side.ask.reply_tokens)
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
