"""Capture from a vLLM server: the most likely tokens at every position of a prompt, by `prompt_logprobs`. Resumable by window.

Finished windows lie in OUT.parts/ until the capture is whole; a repeated call takes them up, if they are of the same question.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import http.client
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.kld import windows as panels
from bench.kld.capture import Array, Capture, Meta, make, panel_fields, write
from bench.kld.windows import Panel, Window
from bench.receipt import canonical, shown

# A proxy from the environment must not stand between us and the server that is measured.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Question:
    """What is asked of which server. edit: a word for what was done to its weights; dtype: as the user knows it."""

    base_url: str
    model: str | None = None
    api_key: str | None = None
    k: int = 20
    edit: str = "stock"
    dtype: str | None = None
    per_stratum: int | None = None
    positions: int = panels.POSITIONS
    timeout_s: float = 600.0


def capture(question: Question, out: Path, say: Callable[[str], None], panel: Panel | None = None) -> Capture:
    """Ask for every window, write `out`. Raises BadRequest for what the server refuses, BenchError when it does not answer (then a repeated
    call goes on where this one stopped), InvalidMeasurement for an answer that is not what was asked for."""
    panel = panel or panels.load()
    model = _model(question)
    cut = panels.cut(panel, lambda text: _tokens(question, model, text), question.positions, question.per_stratum)
    parts = _parts_folder(out, _key(question, model, cut))
    for number, window in enumerate(cut):
        part = parts / f"{number:04}.npy"
        if part.exists():
            continue
        _save(part, _asked(question, model, window))
        say(f"window {number + 1} of {len(cut)}: {window.name}")
    both = np.stack([np.load(parts / f"{number:04}.npy", allow_pickle=False) for number in range(len(cut))])
    made = make(_meta(question, model, panel, cut), {"ids": both["id"].astype(np.int32), "logprobs": both["logprob"].astype(np.float32)})
    write(made, out)
    shutil.rmtree(parts)
    return made


def _meta(question: Question, model: str, panel: Panel, cut: Sequence[Window]) -> Meta:
    return Meta(
        support="top-k",
        k=question.k,
        source="served",
        model=model,
        weights_sha256=None,
        edit=question.edit,
        dtype=question.dtype,
        vocabulary=None,
        tokenizer_sha256=None,
        head=None,
        **panel_fields(panel, cut),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _key(question: Question, model: str, cut: Sequence[Window]) -> str:
    asked = [question.base_url, model, question.k, question.edit, question.dtype, [window.sha256 for window in cut]]
    return hashlib.sha256(canonical(asked).encode()).hexdigest()


def _parts_folder(out: Path, key: str) -> Path:
    """The folder of finished windows; refuses one that belongs to another question."""
    folder = out.with_name(out.name + ".parts")
    mark = folder / "question"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text(key)
    except OSError as error:
        raise BenchError(f"{shown(folder)} cannot be made: {error}\ntry: another --out") from error
    if mark.read_text() != key:
        hint = "the same server, model, --top-k, --edit and windows; or remove it"
        raise BadRequest(f"{shown(folder)} holds the windows of another, unfinished capture\ntry: {hint}")
    return folder


def _save(path: Path, rows: Array) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            np.save(file, rows)
        temporary.replace(path)
    except OSError as error:
        raise BenchError(f"{shown(path)} cannot be written: {error}\ntry: free some space; the finished windows are kept") from error


def _model(question: Question) -> str:
    """The model to name: the one asked for if the server has it, else its only one."""
    listed = _ask(question, "/v1/models").get("data")
    names = [str(card.get("id")) for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    if question.model in names or (question.model is None and len(names) == 1):
        return question.model or names[0]
    raise BadRequest(f"{question.base_url} serves {', '.join(names) or 'no model'}, not {question.model or 'one alone'}\ntry: --model NAME")


def _tokens(question: Question, model: str, text: str) -> list[int]:
    answer = _ask(question, "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise BadRequest(
            f"{question.base_url} has no /tokenize that gives token ids\ntry: a vLLM server; other servers have no prompt_logprobs"
        )
    return tokens


def _asked(question: Question, model: str, window: Window) -> Array:
    """[positions, k] of (id, logprob), most likely first."""
    body = {"model": model, "prompt": list(window.tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": question.k}
    answer = _ask(question, "/v1/completions", body)
    with contextlib.suppress(LookupError, TypeError):
        rows = answer["choices"][0]["prompt_logprobs"]
        if isinstance(rows, list):
            return parsed(rows, window, question.k)
    raise InvalidMeasurement(
        f"{question.base_url} answered without prompt_logprobs\ntry: a vLLM server, without an API layer in front of it"
    )


def parsed(rows: Sequence[Any], window: Window, k: int) -> Array:
    """vLLM's prompt_logprobs of a window. Entry i > 0 maps token id -> {logprob, rank} at position i - 1: the k most likely, and the
    prompt's own token where it is not among them. Raises InvalidMeasurement for any other shape."""
    if len(rows) != len(window.tokens) or rows[0] is not None:
        raise InvalidMeasurement(f"{window.name}: {len(rows)} rows for {len(window.tokens)} tokens; did the server add or drop tokens?")
    out = np.empty((window.positions, k), dtype=[("id", "<i4"), ("logprob", "<f4")])
    for position, row in enumerate(rows[1:]):
        try:
            best = sorted((int(entry["rank"]), int(token), float(entry["logprob"])) for token, entry in row.items())[:k]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidMeasurement(f"{window.name}, position {position}: not {{token: {{logprob, rank}}}}: {error}") from error
        if len(best) != k or best[-1][0] > k or not np.isfinite([logprob for _, _, logprob in best]).all():
            raise InvalidMeasurement(f"{window.name}, position {position}: not the {k} most likely tokens with finite log-probabilities")
        out[position] = [(token, logprob) for _, token, logprob in best]
    return out


def _ask(question: Question, path: str, body: Any = None) -> dict[str, Any]:
    """The JSON object that the server answers. Raises BadRequest for a 4xx answer, BenchError for silence or another failure."""
    url = question.base_url.rstrip("/").removesuffix("/v1") + path
    headers = {"Authorization": f"Bearer {question.api_key}"} if question.api_key else {}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data=data, headers=headers | ({"Content-Type": "application/json"} if data else {}))
        with _OPENER.open(request, timeout=question.timeout_s) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise _refused(url, error.code, error.read(2000).decode(errors="replace")) from error
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        raise BenchError(f"{url}: no usable answer: {error}\ntry: again; finished windows are kept") from error
    return found if isinstance(found, dict) else {}


def _refused(url: str, code: int, text: str) -> BenchError:
    with contextlib.suppress(ValueError, AttributeError):
        plain = json.loads(text)
        text = str((plain.get("error") or plain).get("message", text))
    hint = "try: a smaller --top-k, or start the server with a larger --max-logprobs" if "logprobs" in text else "try: invoke status"
    line = f"{url}: HTTP {code}: {text.strip()[:400]}\n{hint}"
    return BadRequest(line) if 400 <= code < 500 else BenchError(line)
