"""KLD of captures: distributions whose KLD is known by hand, the lower bound, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BadRequest, InvalidMeasurement
from bench.kld import capture, distance
from tests.bench.kld.samples import cuts, full, top_k

HALF = (0.5, 0.25, 0.25)
LN2_4 = 173287  # a quarter of the logarithm of 2, in micronats


def test_kld_over_the_whole_vocabulary_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): 1/2 ln 2 - 1/4 ln 2. Then q = p. Then q = (1/8, 1/8, 3/4):
    1/2 ln 4 + 1/4 ln 2 - 1/4 ln 3 = 0.5917809."""
    reference = full([[HALF, HALF, HALF]])
    candidate = full([[(0.25, 0.5, 0.25), HALF, (0.125, 0.125, 0.75)]])
    (found,) = distance.positions(reference, candidate)
    assert found.kld == (LN2_4, 0, 591781)
    assert found.agree == (False, True, False)
    assert found.lost == (False, False, False)
    assert found.bucket == (3, 3, 3)


def test_a_token_that_left_the_first_twenty_is_lost() -> None:
    """Thirty tokens; the reference prefers token 0. The candidate has 20 others before it, then 19."""
    p = [0.5] + [0.5 / 29] * 29
    lost = [0.001] + [0.04] * 20 + [(1 - 0.801) / 9 / 10] * 9
    kept = [0.001] + [0.04] * 19 + [(1 - 0.761) / 10 / 30] * 10
    many = {"vocabulary": 30}
    (found,) = distance.positions(full([[p, p]], **many), full([[lost, kept]], **many))
    assert found.lost == (True, False)


def test_top_k_by_hand() -> None:
    """p lists 0: 1/2 and 1: 1/4, q lists 0: 1/4 and 2: 1/2. Only token 0 is common: 1/2 ln 2 + 1/2 ln(1/2 : 3/4) = 1/2 ln(4/3)."""
    reference, candidate = top_k([[[(0, 0.5), (1, 0.25)]]]), top_k([[[(2, 0.5), (0, 0.25)]]])
    (found,) = distance.positions(reference, candidate)
    assert found.kld == (143841,)
    assert (found.agree, found.lost, found.bucket) == ((False,), (False,), (3,))


def test_top_k_of_the_same_is_exactly_zero_and_a_vanished_answer_is_lost() -> None:
    same = top_k([[[(0, 0.9), (1, 0.0999)], [(7, 0.3), (1, 0.2)]]])
    assert distance.positions(same, same)[0].kld == (0, 0)
    gone = top_k([[[(5, 0.6), (6, 0.3)], [(7, 0.3), (1, 0.2)]]])
    (found,) = distance.positions(same, gone)
    assert found.lost == (True, False)
    assert found.kld[0] == 0  # nothing common: one bucket holds all, the bound says nothing; `lost` keeps the evidence


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-6, 6), st.floats(-6, 6)), min_size=6, max_size=30), st.integers(1, 6))
def test_top_k_never_exceeds_the_whole(rows: list[tuple[float, float]], k: int) -> None:
    p, q = (np.exp(np.array(column)) / np.exp(np.array(column)).sum() for column in zip(*rows, strict=True))
    size = {"vocabulary": len(rows)}
    reference, candidate = full([[p.tolist()]], **size), full([[q.tolist()]], **size)
    whole = distance.positions(reference, candidate)[0].kld[0]
    part = distance.positions(capture.as_top_k(reference, k), capture.as_top_k(candidate, k))[0].kld[0]
    assert part <= whole + 2
    everything = distance.positions(capture.as_top_k(reference, len(rows)), capture.as_top_k(candidate, len(rows)))[0].kld[0]
    assert abs(everything - whole) <= 5


def test_as_top_k_orders_and_crops() -> None:
    found = capture.as_top_k(full([[(0.2, 0.5, 0.3), HALF]]), 2)
    assert found.arrays["ids"][0, 0].tolist() == [1, 2]
    assert np.exp(found.arrays["logprobs"][0, 0]) == pytest.approx([0.5, 0.3])
    assert (found.meta.support, found.meta.k) == ("top-k", 2)
    assert capture.as_top_k(found, 1).arrays["ids"].tolist() == [[[1], [0]]]
    with pytest.raises(BadRequest, match="holds the 2 most likely tokens, not 3"):
        capture.as_top_k(found, 3)


def test_a_head_with_scale_and_cap() -> None:
    """logits = cap tanh(z / cap), z = scale h: h = (0, 2 atanh(1/2)) with scale 1, cap 2 gives logits (0, 1)."""
    plain = full([[(0.5, 0.5)]])
    assert plain.meta.head is not None
    fact = plain.meta.head.model_copy(update={"scale": 0.5, "cap": 2.0})
    meta = plain.meta.model_copy(update={"head": fact})
    hidden = np.array([[[0.0, 4 * math.atanh(0.5)]]], dtype=np.float32)
    found = capture.logits(capture.make(meta, {"hidden": hidden}, {**plain.head, "bias": np.zeros(2, np.float32)}), 0)
    assert found[0].tolist() == pytest.approx([0.0, 1.0])


UNLIKE: list[tuple[str, dict[str, Any], str]] = [
    ("panel", {"panel_sha256": "0" * 64}, "same checkout"),
    ("tokenizer", {"tokenizer_sha256": "0" * 64}, "one family"),
    ("vocabulary", {"vocabulary": 4}, "one family"),
    ("windows", {"windows": tuple(cut.model_copy(update={"tokens_sha256": "e" * 64}) for cut in cuts(1, 1))}, "--trial"),
    ("dtype", {"dtype": "bfloat16"}, "--differs dtype"),
]


@pytest.mark.parametrize(("name", "change", "hint"), UNLIKE, ids=[row[0] for row in UNLIKE])
def test_unlike_captures_are_refused(name: str, change: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidMeasurement, match=f"have not the same {name}(.|\n)*{hint}"):
        distance.refuse_unlike(full([[HALF]]), full([[HALF]], **change))


def test_support_is_refused_and_unknowns_are_not() -> None:
    with pytest.raises(InvalidMeasurement, match="not the same support"):
        distance.refuse_unlike(full([[HALF]]), top_k([[[(0, 0.5)]]]))
    with pytest.raises(InvalidMeasurement, match="not the same support"):
        distance.refuse_unlike(top_k([[[(0, 0.5), (1, 0.2)]]]), top_k([[[(0, 0.5)]]]))
    distance.refuse_unlike(full([[HALF]]), full([[HALF]], dtype="bfloat16"), ("dtype",))
    distance.refuse_unlike(full([[HALF]]), full([[HALF]], dtype=None, vocabulary=None, tokenizer_sha256=None))
