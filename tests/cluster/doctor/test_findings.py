"""Every kind of finding: there when its cause is, and absent from a healthy pair."""

import re

import pytest

from cluster.doctor.examine import KINDS
from tests.cluster.doctor.cases import CASES
from tests.cluster.doctor.changes import Case
from tests.cluster.doctor.scenes import HEALTHY, Pair, changed


def test_a_healthy_pair_has_only_infos() -> None:
    assert {(finding.id, finding.level) for finding in Pair().findings()} == {(name, "info") for name in HEALTHY}


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_found_with_its_values(case: Case) -> None:
    found = [each for each in changed(case.change).findings() if each.id == case.id and each.where == case.where]
    assert len(found) == 1, [(each.id, each.where, each.what) for each in changed(case.change).findings()]
    said = f"{found[0].what} | {found[0].hint}"
    assert [word for word in case.words if word not in said] == [], said
    assert found[0].why
    assert found[0].level == KINDS[case.id].level


def test_every_kind_has_a_case_and_a_plain_name() -> None:
    assert {case.id for case in CASES} == set(KINDS)
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in KINDS)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_one_cause_brings_no_unrelated_error(case: Case) -> None:
    """What else a cause brings, if anything, is listed here by hand."""
    together = {
        "link-down": {"link-down"},
        "address-on-lo": {"address-on-lo", "device-absent"},
        "hca-unset": set(),
        "hca-absent": {"hca-absent"},
        "docker-no-gpu": set(),
        "disk-image": {"image-missing"},
        "disk-weights": {"weights-incomplete"},
        "gpu-other": set(),
        # USE_HOST_NCCL=1 is refused outside the ring; the patched library is looked at all the same.
        "nccl-patched-missing": {"nccl-patched-missing", "settings-refused"},
        "nccl-patched-differs": {"nccl-patched-differs", "settings-refused"},
        "nccl-patched-stock": {"nccl-patched-stock", "settings-refused"},
    }
    errors = {each.id for each in changed(case.change).findings() if each.level == "error"}
    assert errors == together.get(case.id, {case.id} if KINDS[case.id].level == "error" else set())
