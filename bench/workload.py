"""Workloads: prompts as data in `bench/workloads/*.toml`, each with an id and the sha256 of its text."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pydantic

from bench.errors import BadRequest
from bench.trace import Fact

FOLDER = Path(__file__).resolve().parent / "workloads"
PHASES = ("prose", "structured", "code", "json", "short-code", "long-context")  # those with a file of prompts


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Prompt(Fact):
    """One prompt. The sha256 in the file must be that of the text, so that an edit cannot go unnoticed."""

    id: str
    sha256: str
    text: str

    @pydantic.model_validator(mode="after")
    def _unchanged(self) -> Prompt:
        if sha256(self.text) != self.sha256:
            raise ValueError(f"prompt {self.id}: its text has sha256 {sha256(self.text)}, the file says {self.sha256}")
        return self


class Workload(Fact):
    """A phase: what it shows, its default answer length in tokens, and its prompts, a different one for each lane.

    natural_end: answers may end by themselves; else every answer must reach the token limit, so that all do the same work.
    """

    phase: str
    summary: str
    max_tokens: int = pydantic.Field(ge=1)
    natural_end: bool = False
    prompts: tuple[Prompt, ...] = pydantic.Field(min_length=1)


def load(phase: str) -> Workload:
    """The workload of `phase`. Raises BadRequest for an unknown phase or a file whose text and sha256 differ."""
    if phase not in PHASES:
        raise BadRequest(f"unknown phase '{phase}'; known: {', '.join(PHASES)}")
    path = FOLDER / f"{phase}.toml"
    try:
        return Workload.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except pydantic.ValidationError as error:
        raise BadRequest(f"{path.name}: {error}") from error


def made(id: str, text: str) -> Prompt:
    """A prompt whose text was composed here."""
    return Prompt(id=id, sha256=sha256(text), text=text)


def salted(text: str, salt: str | None) -> str:
    """The text that is sent. A salt in front of it keeps a prefix cache from serving what an earlier run computed."""
    return text if salt is None else f"[{salt}] {text}"


def warm_up() -> Prompt:
    """A prompt that no phase measures, so that warming up caches nothing of what is measured."""
    text = "Name three rivers and say in one sentence each where they rise."
    return Prompt(id="warm-up-rivers", sha256=sha256(text), text=text)
