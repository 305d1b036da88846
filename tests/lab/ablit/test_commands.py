"""The lab's commands as they are called, on a tiny Llama in a folder: what is refused and when, what a repeat does, how Ctrl-C ends."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from vllm_glm_exl3.ablation import direction as files

from ablit import __main__ as command
from ablit import evaluate, search
from ablit.prompts import FOLDER, shipped
from ablit.receipt import check
from tests.lab.ablit import tiny

tokenizers: Any = importlib.import_module("tokenizers")  # of the lab environment alone
TEMPLATE = "{% for m in messages %}>{{ m['content'] }}<{% endfor %}"
LAYERS = tiny.LAYERS


def tokenizer(template: str | None) -> Any:
    """One token a byte, 256 ends a text."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    plain = tokenizers.Tokenizer(tokenizers.models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")
    made.chat_template = template
    return made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template, and two directions of its size."""
    home = tmp_path_factory.mktemp("tiny")
    tiny.loaded().model.save_pretrained(home / "model")
    tokenizer(TEMPLATE).save_pretrained(home / "model")
    for name, seed in (("a", 5), ("b", 6)):
        files.write(home / f"{name}.safetensors", tiny.vectors(seed).tensor, {})
    return home


def flags(folder: Path, home: Path, **changed: Any) -> dict[str, Any]:
    plain: dict[str, Any] = dict.fromkeys(("held_out", "positive", "negative", "other", "controls", "searched", "trials"))
    plain |= {"direction": str(folder / "a.safetensors"), "behaviour": "brief", "prompts": 3, "reply_tokens": 4, "windows": 1}
    plain |= {"targets": "o_proj", "layers": "1-3", "alphas": "2", "control_seeds": 1, "seed": 1}
    return {**plain, "model": str(folder / "model"), "dtype": "float32", "out": str(home / "out"), **changed}


Called = Any


@pytest.fixture
def call(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """The command with changed flags: exit code, stdout, stderr."""

    def called(verb: str = "points", **changed: Any) -> tuple[int, str, str]:
        plain = {"verb": verb, "flags": flags(folder, tmp_path, **changed)}
        monkeypatch.setattr(sys, "argv", ["ablit", json.dumps(plain)])
        code = command.main()
        return (code, *capsys.readouterr())

    return called


def edits(table: str) -> list[str]:
    """Direction, layers and alpha of the rows, without those of the twin and the controls."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return sorted(" ".join(row[:3]) for row in cells if row[0] != "unedited twin" and not row[0].startswith("random"))


def test_a_repeat_runs_the_unedited_model_no_more(call: Called) -> None:
    code, first, said = call()
    assert code == 0
    assert "unedited model: " in said
    assert edits(first) == ["a 1-3 2"]
    code, again, said = call()
    assert (code, again) == (0, first)
    assert "all 3 points were finished before, in " in said
    assert "unedited model: " not in said
    # another question is not answered from there
    assert "unedited model: " in call(reply_tokens=5)[2]


def test_a_searchs_trials_are_those_of_its_question(call: Called, folder: Path, tmp_path: Path) -> None:
    """Of direction, behaviour, targets and layers, in one folder."""
    journal = tmp_path / "out" / search.JOURNAL
    code, table, said = call(trials=2)
    assert (code, len(edits(table))) == (0, 3)
    assert "\ntrial 2 of 2: alpha " in said
    assert " min left)" in said.splitlines()[-1]
    kept = journal.read_bytes()
    others = {"direction": str(folder / "b.safetensors"), "behaviour": "casual", "targets": "o_proj,down_proj", "searched": "2,3"}
    for name, value in others.items():
        code, table, said = call(trials=1, **{name: value})
        assert code == 0, said
        assert "\ntrial 1 of 1: " in said, name
        assert len(journal.read_bytes()) > len(kept)
        kept = journal.read_bytes()
        if name == "direction":
            assert [row[:2] for row in edits(table)] == ["b ", "b "]
            assert "not in this table: 4 receipts in " in said  # of a: its twin, its point and two trials
        if name == "behaviour":
            assert len(edits(table)) == 2
    down = [each for each in map(check, (tmp_path / "out").glob("*.json")) if each.spec.kernel and len(each.spec.targets) == 2]
    assert len(down) == 1
    assert "unedited model: " not in call(trials=2)[2]
    assert "\ntrial 3 of 3: " in call(trials=3)[2]


def test_a_search_keeps_to_its_layers(tmp_path: Path) -> None:
    """Of layers with a gap one is always reached, and no other is edited."""
    gap = search.Space(("m", "d", "t", "p"), tiny.vectors(), ("o_proj",), (1, 2, 20, 29), 30)
    study = search.study_of(tmp_path, gap, 1)
    for _ in range(30):
        spec = search.suggested(study.ask(), gap)
        assert set(spec.layers) <= {1, 2, 20, 29}
        assert max(spec.alpha_of(layer) for layer in spec.layers) >= 0.5 * spec.alpha
    assert search.upper(30) == tuple(range(7, 30))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alphas": "0"}, "error: alpha is 0: nothing would be edited\n  try: 1,2"),
        ({"controls": "0"}, "error: --controls is 0: a control of alpha 0 would be the twin again\n  try: 2"),
        ({"out": "/proc/none"}, "error: cannot write /proc/none/receipt.json: No such file or directory\n  try: "),
        ({"out": "/proc/none", "trials": 1}, "error: the search journal /proc/none/journal.log cannot be used: [Errno 2] No such file"),
        ({"behaviour": "disclaims"}, "error: no shipped prompts for disclaims"),
        ({"searched": "3-9", "trials": 1}, "error: --layers: layers '3-9': there is no layer 9"),
    ],
)
def test_refused_before_the_unedited_pass(call: Called, changed: dict[str, Any], message: str) -> None:
    code, out, said = call(**changed)
    assert (code, out) == (2 if "trials" not in changed or "searched" in changed else 1, "")
    assert message in said
    assert "unedited model" not in said


def test_held_out_prompts_that_are_the_fit(call: Called, folder: Path, tmp_path: Path) -> None:
    """The direction file says what it was made of; the user names nothing."""
    (tmp_path / "mine.txt").write_text("Explain rain.\nExplain snow.\n")
    (tmp_path / "other.txt").write_text("Go on about rain.\nGo on about snow.\n")
    made = {"positive": str(tmp_path / "mine.txt"), "negative": str(tmp_path / "other.txt"), "out": str(tmp_path / "d.safetensors")}
    code, out, said = call("direction", **made, layer=2, positions=1, variant="mean", kit_model={})
    assert (code, said) == (0, ""), said
    assert "halves" in out
    (tmp_path / "copy.txt").write_bytes((tmp_path / "mine.txt").read_bytes())
    code, _, said = call(direction=made["out"], held_out=str(tmp_path / "copy.txt"), prompts=1)
    assert (code, said.partition("\n")[0]) == (2, "error: copy.txt: held out, but the direction was fitted on this very file")
    (tmp_path / "held.txt").write_text("Explain fog.\n")
    code, _, said = call(direction=made["out"], held_out=str(tmp_path / "held.txt"), prompts=1)
    assert code == 0
    assert said.startswith("held-out prompts were not checked against the fit on mine.txt and other.txt: name the same files")
    assert "not checked" not in call(direction=str(_shipped(folder, tmp_path)), held_out=str(tmp_path / "held.txt"), prompts=1)[2]


def _shipped(folder: Path, tmp_path: Path) -> Path:
    """A direction whose notes name shipped files, as the command's defaults make it."""
    notes = {f"{side}_sha256": shipped(name, "fit").sha256 for side, name in (("positive", "brief"), ("negative", "long"))}
    path = tmp_path / "brief.safetensors"
    files.write(path, tiny.vectors(7).tensor, notes)
    return path


def _copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder / "model", tmp_path / "copy"))


DIRECTION: dict[str, Any] = {"layer": 2, "positions": 1, "variant": "mean", "kit_model": {}}
DIRECTION |= {"positive": str(FOLDER / "brief.fit.txt"), "negative": str(FOLDER / "long.fit.txt")}
NO_FILE = "/proc/x.safetensors: No such file or directory"


@pytest.mark.parametrize("verb", ["points", "direction"])
def test_a_model_of_another_family(call: Called, tmp_path: Path, verb: str) -> None:
    config = transformers.GPT2Config(vocab_size=257, n_positions=64, n_embd=tiny.HIDDEN, n_layer=LAYERS, n_head=4)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer(TEMPLATE).save_pretrained(tmp_path / "gpt2")
    more = {**DIRECTION, "out": str(tmp_path / "d.safetensors")} if verb == "direction" else {}
    code, _, said = call(verb, model=str(tmp_path / "gpt2"), **more)
    assert code == 2
    assert "gpt2 cannot be edited here: the lean pass knows the Llama family, not gpt2\n  try: a Llama-family model" in said


@pytest.mark.parametrize("verb", ["points", "direction"])
def test_a_tokenizer_without_a_chat_template(call: Called, folder: Path, tmp_path: Path, verb: str) -> None:
    model = _copied(folder, tmp_path)
    (model / "chat_template.jinja").unlink()
    more = {**DIRECTION, "out": str(tmp_path / "d.safetensors")} if verb == "direction" else {}
    code, _, said = call(verb, model=str(model), **more)
    assert code == 2
    assert "error: copy: no prompt can be put into chat form: " in said
    assert "unedited model" not in said
    assert "  try: the model's instruct version" in said


def test_a_truncated_weight_file(call: Called, folder: Path, tmp_path: Path) -> None:
    model = _copied(folder, tmp_path)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    code, _, said = call(model=str(model))
    assert (code, len(said.splitlines())) == (2, 3)  # the first one is on the fit, which this direction file does not name
    assert "copy cannot be loaded as a model: " in said


def test_a_direction_that_cannot_be_written_is_found_before_the_model_is_loaded(call: Called, tmp_path: Path) -> None:
    code, _, said = call("direction", **DIRECTION, model=str(tmp_path / "no-model"), out="/proc/x.safetensors")
    assert (code, said) == (
        2,
        "error: cannot write /proc/x.safetensors: No such file or directory\n  try: free disk space, or another place\n",
    )
    code, _, said = call("convert", out="/proc/x.safetensors")
    assert (code, said) == (
        1,
        "error: cannot write /proc/x.safetensors: No such file or directory\n  try: free disk space, or another --out\n",
    )


@pytest.mark.parametrize(("verb", "kept"), [("points", "finished points are kept\n  try: the same command again goes on there"),
                                            ("convert", "nothing was written")])  # fmt: skip
def test_interrupted_outside_the_points(call: Called, monkeypatch: pytest.MonkeyPatch, verb: str, kept: str) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(evaluate, "prepare", interrupt)
    monkeypatch.setattr(files, "read", interrupt if verb == "convert" else files.read)
    try:
        code, out, said = call(verb)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, out) == (1, "")
    assert said.endswith(f"interrupted; {kept}\n")


CALLER = """
import sys
import cli, invoke
from cli import lab_env
@cli.task
def go(ctx):
    return lab_env.run_in_lab("ablit", [sys.argv[1]])
lab_env.ensure = lambda: sys.executable
try:
    go(invoke.Context())
except Exception as error:
    sys.exit(getattr(error, "code", 9))
"""


def test_ctrl_c_in_the_unedited_pass_is_told_once(folder: Path, tmp_path: Path) -> None:
    """As a terminal sends it: to the caller and to the lab's process at once."""
    plain = {"verb": "points", "flags": flags(folder, tmp_path, windows=None, model=str(folder / "model"))}
    words = [sys.executable, "-c", CALLER, json.dumps(plain)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr
    for line in process.stderr:
        if line.startswith("unedited model: "):
            break
    os.killpg(process.pid, signal.SIGINT)
    out, rest = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    told = [line for line in rest.splitlines() if not line.startswith("unedited model: ")]
    assert told == ["interrupted; finished points are kept", "  try: the same command again goes on there"]


def test_directions_are_of_weights_and_not_of_a_dtype(call: Called, folder: Path, tmp_path: Path) -> None:
    """The sha256 is of the weight file, in whatever type it is loaded."""
    out = str(tmp_path / "d.safetensors")
    assert call("direction", **DIRECTION, out=out)[0] == 0
    other = tmp_path / "other"
    tiny.loaded(seed=1).model.save_pretrained(other)
    tokenizer(TEMPLATE).save_pretrained(other)
    for dtype in ("float32", "bfloat16"):
        code, _, said = call(direction=out, model=str(other), dtype=dtype)
        assert code == 2
        assert "was made for model (" in said
        assert "this is other, other weights" in said
    assert torch.equal(files.read(Path(out)).vectors, files.read(Path(out)).of(0))
    assert call(direction=out, dtype="bfloat16")[0] == 0
