"""why-slow: public reports with numbers, each cause from constructed evidence and its absence from healthy evidence, and the task."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.counters import Counters
from bench.derive import derived
from bench.receipt import Receipt, seal, write
from bench.why_slow import build, causes, clocks, evidence, reference
from bench.why_slow.causes import Known, Live, diagnose
from bench.why_slow.evidence import Evidence
from tests.bench.compare.support import receipt
from tests.bench.samples import run

ROOT = Path(__file__).parents[3]
PINNED = "dc77ff1c99eeb2df044ee3d4f0094eb033fee410"

HEALTHY = Evidence(
    id="r", kit="spark2", phase="structured", concurrency=1, figure="decode tok/s", rate=83.0, rates=(82.0, 83.0, 84.0), length=7.71,
    acceptance_rate=0.959, drafts=260, per_position=(0.98, 0.98, 0.94, 0.94, 0.91, 0.83, 0.83), steps_s=(0.094, 0.0929, 0.0918), ttft_s=0.2,
    ttft_max_s=0.22, prompt_tokens=40, cached_share=0.0, salted=True, isolated=True, dialect="vllm", spec_method="dflash",
    drafter="incoai/GLM-5.3-Flash-DFlash2", drafter_revision=PINNED,
)  # fmt: skip


def seen(rate: float, length: float, **changes: Any) -> Evidence:
    """Evidence of three equal runs at that rate and acceptance length."""
    return dataclasses.replace(HEALTHY, rate=rate, rates=(rate,) * 3, length=length, steps_s=(length / rate,) * 3, **changes)


def ids(e: Evidence, live: Live | None = None, pinned: str | None = PINNED) -> list[str]:
    return [cause.id for cause in diagnose(e, build.yardstick(e), Known(pinned, live)).causes]


def test_step_time_of_the_published_rows() -> None:
    rows = {row.phase: row for row in reference.of("spark2", "structured") + reference.of("spark2", "prose") if row.accepted_per_step}
    assert rows["structured"].step_s == pytest.approx(0.118, abs=0.0005)  # (1 + 6.71) / 65.1
    assert rows["prose"].step_s == pytest.approx(0.125, abs=0.0005)  # (1 + 2.39) / 27.1


def test_a_healthy_receipt_has_no_cause() -> None:
    found = diagnose(HEALTHY, build.yardstick(HEALTHY), Known(PINNED))
    assert (found.slow, found.causes) == (False, ())


def test_h1_a_slow_cycle_with_a_healthy_drafter() -> None:
    """GLM 142: structured 29.6 tok/s at 6.77 accepted a step: 262 ms; prose 15.2 at 2.26: 214 ms. Half the rate in both phases."""
    slow = seen(29.6, 7.77)
    assert slow.step_s == pytest.approx(0.2625, abs=0.0005)
    found = diagnose(slow, build.yardstick(slow), Known(PINNED))
    assert found.slow
    (cause,) = found.causes
    assert cause.id == "cycle"
    assert "one step takes 262 ms, usual 93" in cause.what  # 7.71 / 83.0
    assert "the drafter is healthy" in cause.what
    prose = seen(15.2, 3.26, phase="prose", acceptance_rate=0.541, per_position=())
    assert prose.step_s == pytest.approx(0.2145, abs=0.0005)
    assert ids(prose) == ["cycle"]
    # against the older row of the same protocol: 262 / 118 = 2.2 times slower a step
    old = next(row for row in reference.of("spark2", "structured") if row.accepted_per_step)
    assert (slow.step_s or 0) / (old.step_s or 1) == pytest.approx(2.22, abs=0.01)


def test_h2_another_drafter_under_the_same_name() -> None:
    """TGLM 7: 28-31 tok/s at an acceptance of 35 % where 46.9 at 74 % are usual: 7 drafted, 3.45 against 6.18 tokens a step."""
    good, bad = seen(46.9, 6.18), seen(29.5, 3.45)
    y = causes.Yardstick("own", good.rate, good.length, good.step_s, "")
    assert [cause.id for cause in diagnose(bad, y, Known(PINNED)).causes] == ["drafter"]
    other = dataclasses.replace(bad, drafter_revision="b" * 40)
    (cause,) = diagnose(other, y, Known(PINNED)).causes
    assert cause.id == "wrong-drafter"
    assert "bbbbbbbbbbbb, the pinned one dc77ff1c99ee" in cause.what
    assert cause.hint == f"DFLASH_REVISION={PINNED}"
    # log(6.18 / 3.45) is more than the whole of log(46.9 / 29.5): the step was even shorter
    assert cause.share is not None
    assert cause.share > 1
    assert [c.id for c in diagnose(dataclasses.replace(bad, spec_method="none"), y, Known(PINNED)).causes] == ["no-speculation"]


def test_both_at_once_are_ranked_by_their_share() -> None:
    y = causes.Yardstick("own", 80.0, 8.0, 0.1, "")
    found = diagnose(seen(20.0, 6.0), y, Known(PINNED)).causes  # step 300 ms: log 3 of log 4; length 6/8: log 4/3 of log 4
    assert [cause.id for cause in found] == ["cycle", "drafter"]
    assert [round(cause.share or 0, 2) for cause in found] == [0.79, 0.21]


def test_h8_a_node_that_flips() -> None:
    """63 against 94 ms a step."""
    flips = dataclasses.replace(HEALTHY, steps_s=(0.063, 0.094, 0.063))
    (cause,) = diagnose(flips, None, Known()).causes
    assert (cause.id, "63 to 94 ms" in cause.what) == ("flips", True)
    assert ids(dataclasses.replace(HEALTHY, steps_s=(0.080, 0.094, 0.090))) == []


def smi(*rows: str) -> tuple[clocks.NodeClock, ...]:
    found = [clocks.parse(node, row) for node, row in zip(("head", "worker"), rows, strict=False)]
    return tuple(each for each in found if each)


FINE = "2480, 3003, 61, 62.10, 96, 0x0000000000000000"


@pytest.mark.parametrize(
    ("row", "cause", "says"),
    [
        ("513, 3003, 48, 30.00, 95, 0x0000000000000000", "node-low-power", "worker: SM clock 513 MHz"),
        ("1450, 3003, 48, 30.00, 95, 0x0000000000000000", "node-low-power", "1450 MHz"),  # under 60 % of 2480
        ("2190, 3003, 60, 55.00, 96, 0x0000000000000000", "node-capped", "the fastest node 2480 MHz"),
        ("2470, 3003, 88, 60.00, 96, 0x0000000000000020", "node-hot", "slowed down by heat"),
        ("2470, 3003, 60, 60.00, 96, 0x0000000000000004", "node-power-limited", "power limit"),
        ("2470, 3003, 50, 20.50, 96, 0x0000000000000000", "node-spinning", "waits for another rank"),
    ],
)
def test_a_node_that_is_wrong(row: str, cause: str, says: str) -> None:
    live = Live(0, 0, 0, smi(FINE, row))
    found = diagnose(HEALTHY, build.yardstick(HEALTHY), Known(PINNED, live)).causes
    assert [each.id for each in found] == [cause]
    assert says in found[0].what
    slow = seen(29.6, 7.77)
    assert ids(slow, live) == ["cycle", cause]


def test_nodes_that_are_fine_or_idle() -> None:
    assert clocks.wrong(smi(FINE, FINE)) == []
    assert clocks.wrong(smi(FINE, "208, 3003, 40, 5.00, 0, 0x0000000000000001")) == []  # idle: its clock says nothing
    assert clocks.wrong(smi("2480, 3003, [N/A], [N/A], 96, [N/A]", FINE)) == []
    assert clocks.parse("x", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver") is None


def test_other_traffic() -> None:
    assert ids(dataclasses.replace(HEALTHY, isolated=False)) == ["other-traffic"]
    assert ids(HEALTHY, Live(running=2, waiting=0, foreign_tokens=31)) == ["other-traffic-now"]
    assert ids(HEALTHY, Live(0, 0, 31)) == ["other-traffic-now"]  # came and went between the two readings
    assert ids(HEALTHY, Live(0, 0, 0)) == []
    assert ids(dataclasses.replace(HEALTHY, isolated=None), Live()) == []


def test_broken_acceptance() -> None:
    assert ids(seen(11.0, 1.0, acceptance_rate=0.0, per_position=(0.0,) * 7))[0] == "dead-drafter"
    assert "dead-drafter" not in ids(seen(11.0, 1.0, acceptance_rate=0.0, per_position=(0.0,) * 7, drafts=63))
    assert ids(dataclasses.replace(HEALTHY, per_position=(1.0,) * 7)) == ["pinned-acceptance"]
    assert ids(dataclasses.replace(HEALTHY, per_position=(1.0,) * 7, drafts=99)) == []
    assert ids(dataclasses.replace(HEALTHY, per_position=(1.0,) * 7, dialect="llamacpp")) == []  # n-grams of a loop do that
    # the published fault of TRITON_ATTN: 29 tok/s at 0.31, later positions collapse
    collapsed = seen(29.0, 3.17, acceptance_rate=0.31, per_position=(0.95, 0.7, 0.3, 0.1, 0.05, 0.04, 0.03))
    assert ids(collapsed)[0] == "late-positions"


def test_warming_up() -> None:
    """44.9 where 83.5 was right, while the warm-up after /health still ran."""
    assert ids(dataclasses.replace(HEALTHY, rates=(44.9, 83.5, 83.0))) == ["warming-up"]
    assert ids(dataclasses.replace(HEALTHY, rates=(70.0, 83.5, 83.0))) == []


def test_prefix_miss() -> None:
    chat = dataclasses.replace(HEALTHY, salted=False, prompt_tokens=8000, ttft_s=2.0)  # 7168 of 8000 can come from pages of 3584
    assert ids(dataclasses.replace(chat, cached_share=0.0)) == ["prefix-miss"]
    assert ids(dataclasses.replace(chat, cached_share=0.896)) == []
    assert ids(dataclasses.replace(chat, cached_share=0.0, salted=True)) == []
    assert ids(dataclasses.replace(chat, cached_share=0.0, prompt_tokens=3000)) == []  # less than a page: nothing could come
    assert ids(dataclasses.replace(chat, cached_share=None)) == []
    assert ids(dataclasses.replace(chat, cached_share=0.0, prompt_tokens=None, ttft_s=0.2)) == []


def test_prefill_starvation() -> None:
    """67 s to the first token of a short prompt while another decodes; 8,004 cold tokens take 5.7 s at 1,411 a second."""
    assert ids(dataclasses.replace(HEALTHY, ttft_s=67.0)) == ["prefill-starved"]
    assert ids(dataclasses.replace(HEALTHY, ttft_s=5.7, prompt_tokens=8004)) == []
    lanes = dataclasses.replace(HEALTHY, concurrency=4, ttft_max_s=60.0, steps_s=())
    assert ids(lanes) == ["prefill-starved"]
    assert build.yardstick(lanes) is None


def test_references_of_the_kits() -> None:
    assert reference.published("spark2", "prose").decode_tok_s == 36.1  # type: ignore[union-attr]
    assert reference.published("spark2", "structured").decode_tok_s == 83.0  # type: ignore[union-attr]
    assert reference.published("spark3", "code").decode_tok_s == 54.9  # type: ignore[union-attr]
    assert reference.published("ring4", "prose").decode_tok_s == 35.0  # type: ignore[union-attr]
    assert reference.published("local", "prose") is None
    faulty = {29.0, 29.6, 15.2, 44.9}
    assert not faulty & {row.decode_tok_s for row in reference.references()}
    assert all(row.protocol in reference.PROTOCOLS for row in reference.references())


def test_the_words() -> None:
    slow = seen(29.6, 7.77)
    y = build.yardstick(slow)
    lines = build.text(slow, diagnose(slow, y, Known(PINNED)), y).splitlines()
    assert lines[0] == "receipt r: kit spark2, structured, decode tok/s 29.6, acceptance length 7.77, step 262 ms"
    assert lines[1].startswith("against 83 tok/s (2026-09-28, TP2, vLLM EXL3 default; P0: harness not named")
    assert lines[2].startswith("PROTOCOLS DIFFER: published by P0; ours:")
    assert lines[3] == "verdict: slow (36% of it)"
    assert lines[4].startswith("cycle: one step takes 262 ms")


def spark(made: Receipt, tok_s: float) -> Receipt:
    """A receipt of kit spark2 whose counters show 6.77 accepted tokens a step: 13 drafts, 88 accepted, 102 tokens."""
    before = Counters(
        dialect="vllm", generation_tokens=0, prompt_tokens=0, running=0, waiting=0, drafts=0, draft_tokens=0, accepted_tokens=0
    )
    after = before.model_copy(
        update={"generation_tokens": 102, "prompt_tokens": 20, "drafts": 13, "draft_tokens": 91, "accepted_tokens": 88}
    )
    runs = tuple(run(i, tok_s, tokens=102).model_copy(update={"before": before, "after": after}) for i in range(3))
    return seal(derived(made.model_copy(update={"runs": runs, "protocol": made.protocol.model_copy(update={"runs": 3})})))


def test_from_a_receipt_by_the_task(tmp_path: Path) -> None:
    settings = {"spec_method": "dflash", "dflash_model": "incoai/GLM-5.3-Flash-DFlash2", "dflash_revision": PINNED}
    made = receipt("x", "b", 1, [29.6], phase="structured", system_kit="spark2", system_settings=settings)
    slow = spark(made, 29.6)
    write(slow, tmp_path / "slow.json")
    write(spark(made.model_copy(update={"id": "good"}), 83.0), tmp_path / "good.json")
    found = evidence.of(slow)
    assert found is not None
    assert found.length == pytest.approx(1 + 88 / 13)
    assert found.step_s == pytest.approx(0.2625, abs=0.001)
    assert (found.isolated, found.drafter_revision) == (True, PINNED)

    def invoke(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "invoke", "why-slow", *words], cwd=ROOT, capture_output=True, text=True)

    done = invoke(str(tmp_path / "slow.json"))
    assert (done.returncode, "cycle: one step takes 262 ms" in done.stdout) == (1, True), done.stdout + done.stderr
    own = invoke(str(tmp_path / "slow.json"), "--against", str(tmp_path / "good.json"), "--json")
    assert own.returncode == 1
    plain = json.loads(own.stdout)
    assert plain["diagnosis"]["causes"][0]["id"] == "cycle"
    assert plain["yardstick"]["differs"] == ""
    assert invoke(str(tmp_path / "good.json")).returncode == 0
    assert invoke(str(tmp_path / "none.json")).returncode == 2
    local = receipt("x", "b", 1, [50, 50])
    write(local, tmp_path / "local.json")
    nothing = invoke(str(tmp_path / "local.json"))
    assert (nothing.returncode, "no published single-stream figure" in nothing.stdout) == (4, True)
