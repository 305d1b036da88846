"""A measured start beside the stock pass, as a receipt."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ablit.classify import CLASSIFIERS, coherence
from ablit.prompts import Prompts
from ablit.provenance import tool
from ablit.receipt import Model, Payload, Receipt, Side, problems, seal, summarize
from ablit.served import panel
from ablit.served.ask import Said
from ablit.served.direction import Direction
from ablit.served.facts import Floor, RankEdit, Served
from ablit.served.measure import Asked, Taken
from ablit.spec import EditSpec
from bench.errors import InvalidMeasurement
from bench.kld.capture import Capture
from bench.receipt import canonical

SAMPLES = 3


@dataclass(frozen=True)
class Kit:
    """What is the same for all points: the kit's name, engine, ranks, its settings, and the model as its head's copy says."""

    name: str
    engine: str
    ranks: int
    settings: Mapping[str, object]
    model: Model

    @property
    def settings_sha256(self) -> str:
        return hashlib.sha256(canonical(dict(self.settings)).encode()).hexdigest()


@dataclass(frozen=True)
class Point:
    """One point of a sweep: what is edited, and along what."""

    spec: EditSpec
    direction: Direction

    @property
    def control(self) -> str | None:
        return "twin" if self.spec.is_null else "random" if self.spec.direction.startswith("random-") else None


@dataclass(frozen=True)
class Pass:
    """One start's facts and its capture; `edits`: what its ranks reported."""

    taken: Taken
    capture: Capture
    edits: tuple[RankEdit, ...] = ()


def identity(kit: Kit, asked: Asked, panel_sha256: str, spec: EditSpec | None) -> str:
    """Twelve hex digits, known before anything runs: a finished point is found again by it, and the stock pass (spec None)."""
    edit = spec.id if spec else "stock"
    parts = [kit.model.sha256, kit.model.dtype, kit.name, kit.settings_sha256, panel_sha256, str(asked.windows), str(asked.k), edit]
    parts += [f"{side.sha256} {len(side.texts)} {asked.classifier} {asked.reply_tokens}" for side in asked.sides]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def receipt(id: str, kit: Kit, asked: Asked, point: Point, passes: tuple[Pass, Pass], floor: Floor | None) -> Receipt:
    """passes: stock and edited. floor None: the point is the twin, which is the floor. Raises InvalidMeasurement when the facts
    contradict the edit that was asked for."""
    stock, edited = passes
    facts = panel.facts(stock.capture, edited.capture)
    behaviour = tuple(_side(*each, asked) for each in zip(asked.sides, stock.taken.sides, edited.taken.sides, strict=True))
    payload = Payload.model_validate(
        {
            "id": id,
            "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "tool": tool(),
            "model": kit.model,
            "direction": dict(point.direction.facts),
            "spec": point.spec,
            "control": point.control,
            "edits": (),
            "panel": facts,
            "behaviour": behaviour,
            "cpu_s": {},
            "summary": summarize(facts, behaviour),
            "protocol": "served",
            "served": _served(kit, asked, passes, floor or panel.floor(facts, edited.taken.at.boot)),
        }
    )
    if wrong := problems(payload):
        raise InvalidMeasurement(f"point {id}: {'; '.join(wrong)}")
    return seal(payload)


def _served(kit: Kit, asked: Asked, passes: tuple[Pass, Pass], floor: Floor) -> Served:
    stock, edited = passes
    return Served(
        kit=kit.name,
        engine=kit.engine,
        ranks=kit.ranks,
        image=edited.taken.image,
        settings_sha256=kit.settings_sha256,
        k=asked.k,
        stock=stock.taken.at,
        edited=edited.taken.at,
        edits=edited.edits,
        floor=floor,
    )


def _side(prompts: Prompts, stock: tuple[Said, ...], edited: tuple[Said, ...], asked: Asked) -> Side:
    judge = CLASSIFIERS[asked.classifier]
    return Side(
        file=prompts.name,
        file_sha256=prompts.sha256,
        classifier=asked.classifier,
        reply_tokens=asked.reply_tokens,
        stock="".join("01"[judge(said.answer)] for said in stock),
        edited="".join("01"[judge(said.answer)] for said in edited),
        stock_soundness="".join(coherence(said.answer)[0] for said in stock),
        soundness="".join(coherence(said.answer)[0] for said in edited),
        first_kld=panel.first_tokens(stock, edited),
        answers_sha256=hashlib.sha256("\0".join(said.text for said in edited).encode()).hexdigest(),
        samples=tuple(said.text[:200] for said in edited[:SAMPLES]),
    )
