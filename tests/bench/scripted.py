"""A scripted server that answers warm-up and probes well, and measured requests as a test says."""

from collections.abc import Sequence
from typing import Any

from tests.fakes.builders import text_reply, uniform
from tests.fakes.script import Reply, Scenario, Spec

SOUND = (
    text_reply("Rhine, Nile and Amazon rise in mountains.", when="Name three rivers"),
    text_reply("It is Paris.", when="capital city of France"),
    text_reply("1, 2, 3, 4, 5, 6, 7, 8, 9", when="Count from 1 to 9"),
    text_reply("Blue.", when="clear sky"),
)
# 20 tokens in chunks of 2, a chunk each 5 ms: 18 tokens after the first chunk in 45 ms, 400 tok/s
MEASURED = Reply(uniform(20, 2, 0.005, 0.02, usage="per-chunk"), spec=Spec(drafts=8, draft_tokens=24, accepted=12, per_position=(8, 3, 1)))


def scenario(*measured: Reply, others: Sequence[Reply] = SOUND, **options: Any) -> Scenario:
    """Warm-up and probes answered by `others`, everything else by `measured` in turn (the last one repeats)."""
    return Scenario([*others, *(measured or (MEASURED,))], **options)
