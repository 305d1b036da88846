"""Capture in this process, full vocabulary: `python -m bench.kld.local`, in the lab environment; `invoke kld.capture` calls it."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from bench import sealed
from bench.errors import BadRequest, BenchError
from bench.kld import capture, windows
from bench.kld import head as heads
from bench.kld import model as models
from bench.kld.windows import Panel, Window

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load(folder: Path, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer of a transformers folder, offline. Raises BadRequest when it holds none."""
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True)
        return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers and safetensors raise whatever their parsers trip over
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise BadRequest(f"{folder} is no folder of a causal language model: {first}\ntry: a folder with config.json") from error


def cut(panel: Panel, tokenizer: Any, per_stratum: int | None, positions: int = windows.POSITIONS) -> tuple[Window, ...]:
    """The panel's windows by a transformers tokenizer, no special tokens added."""
    return windows.cut(panel, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], positions, per_stratum)


def weights_sha256(folder: Path) -> str:
    """Of the folder's safetensors files, by name and content. Raises BadRequest without any."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadRequest(f"{folder} has no *.safetensors\ntry: the folder of a converted model")
    return files_sha256(files)


def files_sha256(files: Sequence[Path]) -> str:
    return hashlib.sha256("\n".join(f"{file.name} {models.sha256_of(file)}" for file in files).encode()).hexdigest()


def final_states(model: Any, cut_windows: Sequence[Window], say: Callable[[str], None]) -> torch.Tensor:
    """The states after the last norm, [windows, positions, hidden], fp32."""
    states = []
    with torch.inference_mode():
        for number, window in enumerate(cut_windows):
            ids = torch.tensor([window.tokens[:-1]])
            states.append(model.base_model(ids, use_cache=False).last_hidden_state.float())
            say(f"window {number + 1} of {len(cut_windows)}: {window.name}")
        head = heads.of(model)
        heads.verify(head, model, states[0][0, :8], model(torch.tensor([cut_windows[0].tokens[:8]]), use_cache=False).logits[0])
    return torch.cat(states)


def captured(model: Any, states: torch.Tensor, fields: dict[str, Any]) -> capture.Capture:
    """A full capture. fields: those of capture.Meta that neither the model nor the states say."""
    head = heads.of(model)
    arrays = {"weight": head.weight.numpy()} | ({} if head.bias is None else {"bias": head.bias.numpy()})
    fact = capture.HeadFact(sha256=capture.array_sha256(arrays), scale=head.scale, cap=head.cap)
    meta = capture.Meta(
        support="full",
        k=None,
        source="in-process",
        dtype=str(model.dtype).removeprefix("torch."),
        vocabulary=len(head.weight),
        head=fact,
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **fields,
    )
    return capture.make(meta, {"hidden": states.numpy()}, arrays)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--gguf", type=Path, help="a GGUF file, converted once into the cache")
    which.add_argument("--folder", type=Path, help="a folder with config.json and *.safetensors")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="the model's name (default: the folder's)")
    parser.add_argument("--edit", default="stock")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--trial", type=int, help="windows of each stratum, for a trial")
    parser.add_argument("--convert-only", action="store_true", help="print the folder of the converted model and end")
    return parser.parse_args(words)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> None:
    folder = models.converted(args.gguf, _say) if args.gguf else args.folder
    if args.convert_only:
        print(folder)
        return
    sealed.refuse_unwritable(args.out)
    digest = weights_sha256(folder)
    model, tokenizer = load(folder, args.dtype)
    panel = windows.load()
    chosen = cut(panel, tokenizer, args.trial)
    tokenizer_file = folder / "tokenizer.json"
    fields = {
        "model": args.name or folder.name,
        "weights_sha256": digest,
        "edit": args.edit,
        "tokenizer_sha256": models.sha256_of(tokenizer_file) if tokenizer_file.is_file() else None,
        **capture.panel_fields(panel, chosen),
    }
    capture.write(captured(model, final_states(model, chosen, _say), fields), args.out)


def main(words: Sequence[str] | None = None) -> int:
    try:
        run(_arguments(words))
    except BenchError as error:
        _say("error: " + str(error).replace("\n", "\n  "))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted; nothing was written")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
