"""invoke compare on receipts: what is refused, by which field; exit codes; the comparison receipt."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.compare import build
from bench.compare.gates import unlike
from bench.compare.load import boots, key, primary, read_sound, side_figures
from bench.compare.verdict import Rules
from bench.errors import InvalidMeasurement
from bench.receipt import Receipt, Sent, find, seal_of
from tests.bench.compare.support import ABBA, receipt, written
from tests.bench.samples import run

ROOT = Path(__file__).parents[3]
A_RATES, B_RATES = (40, 40.5, 41, 41.5), (50, 50.5, 51, 51.5)


def both(
    order: str = ABBA, a: tuple[float, ...] = A_RATES, b: tuple[float, ...] = B_RATES, **changes: Any
) -> tuple[list[Receipt], list[Receipt]]:
    left, arms = {"A": list(a), "B": list(b)}, {"A": "stock", "B": "edited"}
    made = [receipt(arms[c], f"boot{i}", i, [left[c].pop(0)] * 3, **changes) for i, c in enumerate(order)]
    return [r for r in made if r.arm == "stock"], [r for r in made if r.arm == "edited"]


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", "compare", *words], cwd=ROOT, capture_output=True, text=True)


def test_faster_from_receipts(tmp_path: Path) -> None:
    a, b = both()
    written(tmp_path / "a", a)
    written(tmp_path / "b", b)
    done = invoke(str(tmp_path / "b"), "--against", str(tmp_path / "a"), "--out", str(tmp_path / "c.json"))
    assert done.returncode == 0, done.stderr
    assert "prose     decode tok/s  40.75  50.75  4+4    +24.5%  +20.5% to +28.7%  0.029     FASTER" in done.stdout
    assert "A stock: SPEC_METHOD=stock" in done.stdout
    assert "minimum detectable change" in done.stdout
    assert "description only: hierarchical bootstrap" in done.stdout
    assert done.stdout.splitlines()[-2] == "verdict: FASTER in prose"
    plain = json.loads((tmp_path / "c.json").read_text())
    assert plain["seal"] == seal_of(plain)
    assert plain["exit_code"] == 0
    assert plain["a"]["receipts"] == {each.id: each.seal for each in a}
    jsonschema.validate(plain, json.loads((ROOT / "bench/schema/comparison-v1.json").read_text()))


def test_arms_pick_their_receipts_out_of_one_folder(tmp_path: Path) -> None:
    a, b = both(a=B_RATES, b=A_RATES)
    written(tmp_path, [*a, *b, receipt("third", "boot99", 50, [10, 10, 10], system_kit="spark2")])
    done = invoke(str(tmp_path), "--arms", "stock,edited", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "REGRESSION: prose"
    assert invoke(str(tmp_path), "--arms", "edited,stock").returncode == 0
    gone = invoke(str(tmp_path), "--arms", "stock,nobody")
    assert gone.returncode == 3
    assert "field arm: no receipt of the candidate" in gone.stderr


def test_exit_codes_of_what_is_undecided_or_unusable(tmp_path: Path) -> None:
    a, b = both("ABBABA", A_RATES[:3], B_RATES[:3])
    written(tmp_path / "few", [*a, *b])
    few = invoke(str(tmp_path / "few"), "--arms", "stock,edited")
    assert (few.returncode, "DESCRIPTIVE ONLY: 3 boots" in few.stdout) == (4, True)
    a, b = both(system_boot=None)
    written(tmp_path / "unknown", [*a, *b])
    unknown = invoke(str(tmp_path / "unknown"), "--arms", "stock,edited")
    assert unknown.returncode == 3
    assert unknown.stderr.count("field system.boot: unknown") == 8
    assert invoke(str(tmp_path / "few")).returncode == 2
    assert invoke(str(tmp_path / "few"), "--arms", "stock,edited", "--differs", "wheels").returncode == 2
    missing = invoke(str(tmp_path / "few"), "--arms", "stock,edited", "--primary", "code")
    assert (missing.returncode, "no receipt of the primary endpoint code" in missing.stderr) == (3, True)


def test_invalid_receipts_are_refused_by_name(tmp_path: Path) -> None:
    a, b = both()
    broken = receipt("edited", "boot9", 9, [50, 50])
    runs = (run(0, 50.0), run(1, 50.0, error="broken off"))
    bad = receipt("edited", "boot10", 10, [50, 50], runs=runs)
    folder = written(tmp_path, [*a, *b, broken, bad])
    path = folder / f"{broken.id}.json"
    path.write_text(path.read_text().replace('"arm": "edited"', '"arm":  "edited"').replace("one two", "two one"))
    with pytest.raises(InvalidMeasurement) as failure:
        read_sound(find([folder]))
    assert f"{broken.id}.json: field seal" in str(failure.value)
    assert f"{bad.id}.json: field valid: marked invalid: run 1: broken off" in str(failure.value)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("system.kit", {"system_kit": "spark2"}),
        ("system.hardware", {"system_hardware": {"cpu": "y"}}),
        ("system.engine", {"system_engine": "e 2"}),
        ("system.weights", {"system_weights": {"sha256": "v"}}),
        ("model", {"model": "other"}),
        ("protocol.max_tokens", {"protocol_max_tokens": 12}),
        ("protocol.prompts", {"protocol_prompts": (Sent(id="p", sha256="1" * 64),)}),
        ("protocol.temperature", {"protocol_temperature": 0.5}),
        ("protocol.thinking", {"protocol_thinking": True}),
        ("protocol.salted", {"protocol_salted": True}),
        ("protocol.dialect", {"protocol_dialect": "llamacpp"}),
        ("protocol.phase", {"phase": "code"}),
    ],
)
def test_unlike_arms_are_refused_by_field(field: str, changes: dict[str, Any]) -> None:
    a, _ = both()
    _, b = both(**changes)
    reasons = unlike(a, b)
    assert any(f"field {field}" in reason for reason in reasons), reasons
    with pytest.raises(InvalidMeasurement, match=f"field {field}"):
        build.compare(build.Question(a, b, Rules(("prose",), draws=100)))


def changed_tool(made: list[Receipt], **changes: Any) -> list[Receipt]:
    return [each.model_copy(update={"tool": each.tool.model_copy(update=changes)}) for each in made]


def test_tools_and_token_sources() -> None:
    a, b = both()
    assert unlike(a, b) == []
    for field, value in (("client", "aiohttp 9"), ("version", "9"), ("bench_sha256", "1" * 64)):
        assert any(f"field tool.{field}" in reason for reason in unlike(a, changed_tool(b, **{field: value})))
    assert unlike(a, changed_tool(b, client="aiohttp 9"), ["tool"]) == []
    mixed = changed_tool(b[:2], client="aiohttp 9") + b[2:]
    assert "field tool.client differs inside arm edited" in unlike(a, mixed, ["tool"])[0]
    guessed = [each.model_copy(update={"summary": each.summary.model_copy(update={"token_sources": ("final_usage",)})}) for each in b]
    assert any("field summary.token_sources" in reason for reason in unlike(a, guessed))


def test_weights_may_differ_when_they_are_the_question() -> None:
    a, _ = both()
    _, b = both(system_weights={"sha256": "v"}, model="edited model")
    assert unlike(a, b, ["weights"]) == []
    assert len(unlike(a, b)) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda a, b: (a, [*b[:-1], a[0]]), "system.boot: boot boot0 is in both arms"),
        (lambda a, b: (a, [*b, b[0]]), "id: receipt .* is there twice"),
        (
            lambda a, b: (a, [*b[:-1], receipt("edited", "boot20", 20, [50, 50, 50], system_settings={"spec_method": "x"})]),
            "inside arm edited",
        ),
        (
            lambda a, b: (a, [*b[:-1], receipt("edited", "boot20", 20, [50, 50])]),
            r"protocol\.runs differs in prose: boots have 2 to 3 runs",
        ),
        (lambda a, b: (a, [*b, receipt("edited", "boot5", 21, [50, 50, 50], phase="code")]), "the baseline has no receipt of code"),
    ],
)
def test_what_is_wrong_inside_the_arms(change: Callable[..., Any], field: str) -> None:
    a, b = change(*both())
    with pytest.raises(InvalidMeasurement, match=field):
        build.compare(build.Question(a, b, Rules(("prose",), draws=100)))


def test_receipts_of_one_boot_are_put_together() -> None:
    one, two = receipt("x", "b1", 1, [40, 40, 40]), receipt("x", "b1", 2, [50, 50, 50, 50], id="again")
    found = boots([two, one])
    assert len(found) == 1
    assert [round(value) for value in found[0].runs] == [40, 40, 40, 50, 50, 50, 50]
    assert round(found[0].value) == 50
    assert found[0].first_utc.startswith("2026-11-29T12:01")
    assert [boot.boot for boot in boots([receipt("x", "a2", 5, [40]), receipt("x", "b1", 2, [40])])] == ["b1", "a2"]  # as they ran


def test_primary_figure_of_lanes_is_the_steady_rate() -> None:
    single = receipt("x", "b1", 1, [40, 50, 60])
    found = primary(single)
    assert found is not None
    assert (found.name, round(found.value), len(found.runs)) == ("decode tok/s", 50, 3)
    lanes = receipt("x", "b1", 1, [40, 50]).model_copy(update={"protocol": single.protocol.model_copy(update={"concurrency": 4})})
    assert (key(lanes), primary(lanes)) == ("prose x4", None)  # no group figures in this receipt: unknown, not a sum

    lanes.__dict__["rounds"] = (Round(GroupRate(120.0)), Round(None), Round(GroupRate(130.0)), Round(GroupRate(123.0)))
    found = primary(lanes)
    assert found is not None
    assert (found.name, found.value, found.runs) == ("group steady tok/s", 123.0, (120.0, 130.0, 123.0))


@dataclass
class GroupRate:
    steady_tok_s: float | None


@dataclass
class Round:
    group: GroupRate | None


def test_primary_figure_of_other_phases() -> None:
    cold = primary(receipt("x", "b1", 1, [40, 50], phase="prefill"))
    assert cold is not None
    assert (cold.name, cold.value) == ("prefill tok/s", 100.0)  # 20 prompt tokens, none cached, in 0.2 s
    assert primary(receipt("x", "b1", 1, [40, 50], phase="mixed")) is None


def test_side_figures() -> None:
    # 4 drafts, 6 accepted, twice: length 1 + 12/8 = 2.5; a rate of 50: a step of 50 ms
    found = side_figures([receipt("x", "b1", 1, [50, 50])])
    assert found["acceptance_length"] == 2.5
    assert found["step_s"] == pytest.approx(0.05, rel=1e-4)
    assert found["ttft_s"] == 0.2


def test_failed_gates() -> None:
    a, b = both()
    garbled = [b[0].model_copy(update={"failed_gates": ("coherence capital: wrong or garbled answer",)}), *b[1:]]
    found = build.compare(build.Question(a, garbled, Rules(("prose",), draws=100)))
    assert (found.exit_code, "failed an output gate" in found.verdict) == (1, True)
    with pytest.raises(InvalidMeasurement, match="field failed_gates"):
        build.compare(build.Question(garbled, a, Rules(("prose",), draws=100)))


def test_unequal_work_is_noted() -> None:
    a, b = both()
    short = [
        receipt("edited", each.system.boot or "", i, [50] * 3, runs=tuple(run(n, 50.0, tokens=9) for n in range(3)))
        for i, each in enumerate(b)
    ]
    assert build.compare(build.Question(a, short, Rules(("prose",), draws=100))).notes == ("prose: unequal work: 11 and 9 tokens per run",)
