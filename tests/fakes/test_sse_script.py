"""Scenarios as values and as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import codec
from tests.fakes.builders import (
    server_error,
)
from tests.fakes.script import (
    Content,
    Cut,
    Done,
    Raw,
    Reply,
    Scenario,
    Spec,
    Step,
    Wait,
)
from tests.fakes.test_sse_server import EVERY_STEP


def test_scenario_as_json() -> None:
    full = Reply(EVERY_STEP, headers={"x": "y"}, when="w", framing="bytes:2", line_end="\r\n", spec=Spec(1, 2, 3, [1]))
    scenario = Scenario([full, server_error()], order="cycle", health=[503, 200], api_key="k")
    assert codec.from_json(codec.to_json(scenario)) == scenario
    good = json.loads(codec.to_json(scenario))
    spoils: list[tuple[Callable[[Any], None], str]] = [
        (lambda d: d.update(replise=1), "unknown keys"),
        (lambda d: d["replies"][0].update(frame="x"), r"replies\[0\]: unknown keys"),
        (lambda d: d["replies"][0]["steps"][1].update(ms=1), r"steps\[1\]: unknown keys"),
        (lambda d: d["replies"][0]["steps"][1].update(s="1"), "want float"),
        (lambda d: d["replies"][0]["steps"][1].update(kind="sleep"), "kind in"),
        (lambda d: d["replies"][0].update(framing="bytes:0"), "framing"),
    ]
    for spoil, message in spoils:
        bad = json.loads(json.dumps(good))
        spoil(bad)
        with pytest.raises(ValueError, match=message):
            codec.from_json(json.dumps(bad))


def test_scripts_that_cannot_be_played() -> None:
    cases: list[tuple[list[Step], str]] = [
        ([Cut(), Done()], "must be the last"),
        ([Content("a", -1)], "negative"),
        ([Content("a", 2, token_ids=[1])], "1 token_ids for 2 tokens"),
        ([Raw("")], "empty Raw"),
        ([Wait(-1)], "negative"),
    ]
    for steps, message in cases:
        with pytest.raises(ValueError, match=message):
            Reply(steps)
    with pytest.raises(ValueError, match="Wait steps only"):
        Reply([Done()], status=500)
