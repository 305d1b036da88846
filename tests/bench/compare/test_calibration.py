"""The calibration: its arithmetic against the code it judges, a short run, and the committed receipt."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench import calibration
from bench.calibration import Case, Noise
from bench.compare import stats
from bench.receipt import seal_of

ROOT = Path(__file__).parents[3]
QUIET = Noise("q")
DRIFT = Noise("d", drift=0.004)


@pytest.mark.parametrize("blocks", [None, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]])
def test_the_simulated_test_is_the_real_one(blocks: list[int] | None) -> None:
    rng = np.random.default_rng(3)
    in_b = calibration.abba(5)
    medians = rng.normal(size=(40, 10)) + 0.8 * in_b
    found = calibration.permutation_p(medians, in_b, blocks)
    for row, p in zip(medians, found, strict=True):
        real = stats.shift(stats.Design(tuple(row), tuple(in_b.tolist()), None if blocks is None else tuple(blocks)))
        assert p == pytest.approx(real.p)


def test_orders() -> None:
    letters = ["".join("AB"[int(b)] for b in calibration.abba(boots)) for boots in (4, 5, 6)]
    assert letters == ["ABBABAAB", "ABBABAABAB", "ABBABAABABBA"]
    rng = np.random.default_rng(1)
    shuffled = calibration.shuffled_blocks(5, rng)
    assert [int(shuffled[:4].sum()), int(shuffled[4:8].sum()), int(shuffled[8:].sum())] == [2, 2, 1]
    assert calibration.ORDERS["AABB"](4).tolist() == [False] * 4 + [True] * 4


def test_noise_is_what_it_says() -> None:
    rng = np.random.default_rng(2)
    flat = calibration.simulate(Noise("n", boot_sd=0.02, run_sd=0), 6, 1, 20_000, rng)[:, :, 0]
    assert flat.std(axis=0) == pytest.approx(0.02, rel=0.03)
    tied = calibration.simulate(Noise("n", boot_sd=0.02, run_sd=0, rho=0.8), 6, 1, 20_000, rng)[:, :, 0]
    assert tied.std(axis=0) == pytest.approx(0.02, rel=0.03)
    assert np.corrcoef(tied[:, 2], tied[:, 3])[0, 1] == pytest.approx(0.8, abs=0.02)
    assert np.corrcoef(tied[:, 2], tied[:, 4])[0, 1] == pytest.approx(0.64, abs=0.02)
    falling = calibration.simulate(Noise("n", boot_sd=0, run_sd=0, drift=0.004), 4, 2, 3, rng)
    assert falling[1, :, 1] == pytest.approx([0, 0.004, 0.008, 0.012])


def claimed(noise: Noise, method: str, order: str, boots: int = 5, count: int = 2000) -> float:
    return calibration.rate(Case(noise, boots, count=count), method, order, np.random.default_rng(4)).claimed


def test_ours_keeps_its_level_and_the_naive_ones_do_not() -> None:
    # 2,000 simulations: three standard errors at 5 % are 1.5 points
    assert claimed(QUIET, "exact permutation", "ABBA") < 0.065
    assert claimed(DRIFT, "exact permutation", "ABBA") < 0.02
    assert claimed(DRIFT, "exact permutation inside blocks", "blocks") < 0.065
    assert claimed(DRIFT, "exact permutation", "AABB") > 0.4  # published: 48 %
    assert claimed(QUIET, "bootstrap over boots", "ABBA", boots=4) > 0.10  # published: 15 %
    assert claimed(QUIET, "bootstrap over pooled runs", "ABBA") > 0.15
    assert claimed(QUIET, "t test of boot medians", "ABBA") == pytest.approx(0.05, abs=0.015)
    assert claimed(QUIET, "ranges do not overlap", "ABBA", boots=4) == pytest.approx(2 / 70, abs=0.012)


def test_power_grows_with_the_effect() -> None:
    rng = np.random.default_rng(5)
    rates = [
        calibration.rate(Case(QUIET, 4, effect, count=1000), "exact permutation", "ABBA", rng).claimed for effect in (0.01, 0.03, 0.05)
    ]
    assert rates[0] < rates[1] < rates[2]
    assert rates[1] == pytest.approx(0.61, abs=0.06)  # published: 62 %


def committed() -> dict[str, object]:
    (path,) = (ROOT / "results" / "calibration").glob("*.json")
    plain: dict[str, object] = json.loads(path.read_text())
    return plain


def test_the_committed_receipt_is_sealed_and_ours_keeps_its_level() -> None:
    plain = committed()
    assert plain["seal"] == seal_of(plain)
    assert calibration.above_nominal(plain) == []
    assert calibration.table(plain).count("\n") == 17  # head, rule, 15 method-order rows, blocks


def test_a_design_above_its_level_is_named() -> None:
    plain = committed()
    cell = next(c for c in plain["false_alarms"] if c["order"] == "ABBA" and c["method"] == "exact permutation")  # type: ignore[attr-defined]
    cell["claimed"] = 0.08
    assert calibration.above_nominal(plain) == [cell]


def test_the_detectable_change_is_that_of_the_receipt() -> None:
    factors = committed()["detected_80_boot_sds"]
    assert {kind: {str(n): value for n, value in row.items()} for kind, row in stats.DETECTED_80.items()} == factors
    assert calibration.detected_80(4, False, 1000, np.random.default_rng(9)) == pytest.approx(2.85, abs=0.15)
