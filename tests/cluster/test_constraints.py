"""Constraints: each one is broken by a row here, the kits as shipped break none, and the message says what, from where and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import kits
from cluster.constraint_extra import OWNED_VARIABLES
from cluster.constraint_model import abbreviates, flags, images_per_request, least_request_gib
from cluster.constraints import ADVICE, CONSTRAINTS, ON_NODES, broken, check, documented, warnings
from cluster.engines import vllm
from cluster.errors import BadSettings
from cluster.fields import AllSettings
from cluster.ranks import ranks
from cluster.settings import FIELDS, Effective, load
from tests.cluster.constraint_rows import ADVISED, FINE, PLAIN, ROWS, Changes

ADDRESSES = {"HEAD_IP": "10.0.0.1", "WORKER_IP": "10.0.0.2", "WORKER2_IP": "10.0.0.3", "WORKER3_IP": "10.0.0.4"}
RING_DEVICES = {f"{role}_CX7_IB": "rocep1s0f0,rocep1s0f1" for role in ("HEAD", "WORKER", "WORKER2", "WORKER3")}
SPARKS = ("spark2", "spark3", "spark4", "ring4")
KITS = ("local", "twin", *SPARKS)

Make = Callable[..., Effective]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The settings of a kit with addresses given, and these changes in `.env`: the first change is on line 1."""

    def _make(kit: str, **changes: str | int) -> Effective:
        common = {} if kit in ("local", "twin") else ADDRESSES | (RING_DEVICES if kit == "ring4" else {})
        lines = {**changes, **{name: value for name, value in common.items() if name not in changes}}
        path = tmp_path / ".env"
        path.write_text("".join(f"{name}='{value}'\n" for name, value in lines.items()))
        return load({"kit": kit}, {}, path)

    return _make


def ids(effective: Effective) -> list[str]:
    return [rule.id for rule, _ in broken(effective)]


@pytest.mark.parametrize("kit", KITS)
def test_kits_as_shipped_pass(make: Make, kit: str) -> None:
    assert ids(make(kit)) == []
    check(make(kit))


def test_every_kit_is_tried() -> None:
    assert set(KITS) == set(kits.names())
    assert {name for name in kits.names() if kits.load(name).hardware == "gb10"} == set(SPARKS)


@pytest.mark.parametrize(("rule", "kit", "changes", "said"), ROWS, ids=[f"{n}-{row[0]}" for n, row in enumerate(ROWS)])
def test_broken(make: Make, rule: str, kit: str, changes: Changes, said: str) -> None:
    effective = make(kit, **changes)
    assert rule in ids(effective)
    assert broken(effective) == broken(effective)  # pure: the same again
    with pytest.raises(BadSettings) as caught:
        check(effective)
    found = next(c for c in CONSTRAINTS if c.id == rule)
    assert caught.value.exit_code == 2
    assert said in str(caught.value)
    assert f"  why: {found.evidence}\n  try: {found.hint}" in str(caught.value)


# Rules that need a kit nobody ships.
UNSHIPPED = {"ring-nodes"}


def test_every_constraint_has_a_row() -> None:
    assert {c.id for c in CONSTRAINTS} - {row[0] for row in ROWS} == UNSHIPPED


def test_ring_of_three(make: Make) -> None:
    ring = make("ring4")
    short = Effective(ring.settings, ring.sources, ring.kit.model_copy(update={"nodes": ring.kit.nodes[:3]}))
    assert "ring-nodes" in ids(short)


@pytest.mark.parametrize(("kit", "changes"), FINE)
def test_not_broken(make: Make, kit: str, changes: Changes) -> None:
    assert ids(make(kit, **changes)) == []


def test_two_node_reservation_is_fine_where_it_is_meant(tmp_path: Path) -> None:
    given = {**ADDRESSES, "KV_CACHE_MEMORY_BYTES": "11811160064"}
    assert ids(load({"kit": "spark3"}, given, tmp_path / "none")) == []


def test_all_broken_ones_are_listed_at_once(make: Make) -> None:
    effective = make("spark3", KV_CACHE_DTYPE="auto", TP=2, WORKER_IP="", DFLASH_DRAFT_TP=3)
    with pytest.raises(BadSettings, match=r"^kit spark3: 4 combinations of settings that must not run\n") as caught:
        check(effective)
    assert re.findall(r"^([a-z0-9-]+):", str(caught.value), re.M) == ["kv-cache-dtype", "tp3-drafter", "addresses-missing", "node-count"]


def test_message_of_one(make: Make) -> None:
    with pytest.raises(BadSettings) as caught:
        check(make("spark4", GPU_MEM_UTIL="0.9"))
    assert str(caught.value) == (
        "kit spark4: a combination of settings that must not run\n"
        "four-memory: GPU_MEM_UTIL is 0.9 (.env line 1)\n"
        "  why: 0.85 left 1-2 GiB a node and cost two engine deaths (NV_ERR_NO_MEMORY); 0.75 is as fast (GLM PR 115)\n"
        "  try: GPU_MEM_UTIL=0.75"
    )


def test_passed_on_values_are_not_shown(make: Make) -> None:
    hidden = {"EXTRA_ARGS": "--api-key hunter2 --port 1", "GLM53_EXTRA_ENV": "HF_TOKEN=hunter2 hunter2 PORT=CHANGE_ME"}
    with pytest.raises(BadSettings) as caught:
        check(make("spark2", VLLM_API_KEY="hunter2CHANGE_ME", **hidden))
    assert "--api-key (use VLLM_API_KEY)" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kit", SPARKS)
def test_owned_variables_are_what_a_rank_gets(make: Make, kit: str) -> None:
    effective = make(kit, NCCL_NCHANNELS=8, ABLIT=1, GLM53_APC_RETENTION_INTERVAL=3584)
    for rank in ranks(effective):
        assert set(vllm.container_environment(rank)) <= OWNED_VARIABLES


@pytest.mark.parametrize("kit", SPARKS)
def test_flags_that_a_rank_gets_are_owned_or_only_switches(make: Make, kit: str) -> None:
    effective = make(kit, GLM53_DEFAULT_REASONING_EFFORT="low")
    switches = {"--enable-prefix-caching", "--enable-prompt-tokens-details", "--no-enable-flashinfer-autotune", "--enable-auto-tool-choice"}
    for rank in ranks(effective):
        for flag in {word for word in vllm.serve(rank) if word.startswith("--")} - switches - {"--kv-cache-memory-bytes"}:
            assert "extra-args-owned" in ids(make(kit, EXTRA_ARGS=f"{flag} 1")), flag


def test_nothing_of_the_22_groups_is_missing() -> None:
    assert {c.group for c in CONSTRAINTS} | {node.group for node in ON_NODES} == set(range(23))
    assert 0 not in {node.group for node in ON_NODES}


def test_ids_are_unique_and_settings_exist() -> None:
    names = [c.id for c in (*CONSTRAINTS, *ADVICE)] + [node.id for node in ON_NODES]
    assert len(names) == len(set(names))
    assert {name for c in (*CONSTRAINTS, *ADVICE) for name in c.settings} <= set(FIELDS)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_documented_is_one_line_each_and_in_the_document() -> None:
    lines = [line for line in documented().splitlines() if line.startswith("- ")]
    found = [match[1] for line in lines if (match := re.fullmatch(r"- Do not .+\. Instead: .+\. \(`([a-z0-9-]+)`\)", line))]
    assert sorted(found) == sorted(c.id for c in CONSTRAINTS)
    assert lines[0] == "- Do not set KV_CACHE_DTYPE to anything but fp8. Instead: KV_CACHE_DTYPE=fp8. (`kv-cache-dtype`)"
    text = (Path(__file__).parents[2] / "docs" / "refused-settings.md").read_text()
    between = text.partition("<!-- constraints -->\n")[2].partition("<!-- /constraints -->")[0]
    assert between == documented(), "paste what cluster.constraints.documented() returns between the markers"


@pytest.mark.parametrize(("rule", "kit", "changes", "said"), ADVISED)
def test_warnings(make: Make, rule: str, kit: str, changes: Changes, said: str) -> None:
    effective = make(kit, **changes)
    check(effective)
    assert any(line.startswith(f"{rule}: ") and said in line for line in warnings(effective))


def test_no_warnings_without_cause(make: Make) -> None:
    assert {row[0] for row in ADVISED} == {c.id for c in ADVICE}
    assert warnings(make("local")) == []
    assert warnings(make("spark2", VLLM_API_KEY="k")) == []
    assert warnings(make("spark2", HOST="127.0.0.1")) == []


def test_flags_are_read_as_vllm_reads_them(make: Make) -> None:
    read = flags(make("spark2", EXTRA_ARGS="--a_b=1 --c -2 -n3 --e.f=g --h -tp 4 word").settings)
    assert read == {"--a-b": "1", "--c": "", "--nnodes": "", "--e": "g", "--h": "", "--tensor-parallel-size": "4"}
    assert abbreviates("--max-num-s", "--max-num-seqs")
    assert not abbreviates("--m", "--max-num-seqs")
    assert not abbreviates("--max-num-seqs-more", "--max-num-seqs")


@pytest.mark.parametrize(
    ("length", "changes", "gib"),
    [(500_000, PLAIN, 10.95), (850_000, PLAIN, 13.435), (1_000_000, PLAIN, 14.5), (850_000, {}, 7.58), (425_000, {}, 3.79)],
)
def test_least_request(make: Make, length: int, changes: Changes, gib: float) -> None:
    assert least_request_gib(make("spark2", MAX_MODEL_LEN=length, **changes)) == pytest.approx(gib)


def test_images(make: Make) -> None:
    texts = {"[]": None, "{": None, '{"image":true}': None, '{"image":1.5}': None, "{}": 999, '{"video":1}': 999, '{"image":0}': 0}
    assert {text: images_per_request(make("spark2", LIMIT_MM=text).settings) for text in texts} == texts


SPICY = ["", "off", "all", "1,2", "8 16", "-", "--", "-tp=", "--kv-cache-memory-bytes", "A=1", "=", "{}", '{"image":9}', "auto", "10.0.0.1"]
VALUES = st.one_of(st.none(), st.integers(0, 9), st.integers(), st.floats(0, 1), st.text(max_size=12), st.sampled_from(SPICY))


@given(st.sampled_from(KITS), st.dictionaries(st.sampled_from(sorted(FIELDS)), VALUES, max_size=12))
@settings(max_examples=300, deadline=None)
def test_valid_settings_raise_nothing_but_bad_settings(kit_name: str, changes: dict[str, Any]) -> None:
    shipped = load({"kit": kit_name}, {}, Path("/nonexistent"))
    values = shipped.settings.model_dump()
    for name, value in changes.items():
        if valid({**values, name: value}):
            values[name] = value
    effective = Effective(AllSettings.model_validate(values), dict.fromkeys(FIELDS, ".env line 1"), shipped.kit)
    warnings(effective)
    try:
        check(effective)
    except BadSettings as error:
        assert error.exit_code == 2  # noqa: PT017 - either outcome is right


def valid(values: dict[str, Any]) -> bool:
    try:
        AllSettings.model_validate(values)
    except pydantic.ValidationError:
        return False
    return True
