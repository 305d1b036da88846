"""Long prompts: varied, always the same, and as long as wanted."""

import asyncio
import itertools
import zlib

import pytest

from bench import workload
from bench.errors import BadRequest
from bench.phases.fit import fitted, next_guess
from bench.phases.level import depths
from bench.phases.text import compose, edited, words

TASK = workload.load("long-context").prompts[0]


def text(seed: int, count: int) -> str:
    return " ".join(itertools.islice(words(seed), count))


def test_the_same_seed_gives_the_same_log_and_another_seed_another() -> None:
    assert text(1, 5000) == text(1, 5000)
    # two logs share no opening: a prefix cache finds nothing of one in the other
    assert text(1, 30) != text(2, 30)


def test_the_log_is_no_filler() -> None:
    """Zipped, filler of one repeated phrase shrinks below 1 %; this log, which has numbers and few repeated sentences, to 17 %."""
    log = text(1, 20000).encode()
    assert len(zlib.compress(log, 9)) / len(log) > 0.15
    assert len(zlib.compress(b"the quick brown fox " * 5000, 9)) / 100_000 < 0.01
    lines = text(1, 20000).split(". ")
    assert len(set(lines)) / len(lines) > 0.9


def test_compose_holds_the_task_at_the_end() -> None:
    assert compose(1, 0, "Do it.") == "Do it."
    long = compose(1, 50, "Do it.")
    assert long.startswith("Below is the log of a small harbour.\n")
    assert long.endswith("\n\nDo it.")
    assert len(long.split(" ")) > 50


def test_an_edit_leaves_what_is_before_it() -> None:
    whole = " ".join(str(i) for i in range(100))
    changed = edited(whole, 0.9)
    assert changed.split(" ")[:90] == whole.split(" ")[:90]
    assert changed.split(" ")[90:92] == ["(corrected)", "90"]
    assert changed.split(" ")[-1] == "99"


@pytest.mark.parametrize("target", [150, 400, 8192, 30000])
@pytest.mark.parametrize("tokens_per_word", [1.0, 1.37, 2.6])
def test_fitting_ends_within_half_a_percent(target: int, tokens_per_word: float) -> None:
    """With a tokenizer that makes so many tokens of a word, and 30 of the template."""
    asked = []

    async def count(sample: str) -> int:
        asked.append(sample)
        return 30 + round(tokens_per_word * len(sample.split()))

    try:
        prompt = asyncio.run(fitted(count, 1, TASK, target))
    except BadRequest:
        assert 30 + tokens_per_word * len(TASK.text.split()) > target
        return
    got = 30 + round(tokens_per_word * len(prompt.text.split()))
    assert abs(got - target) <= max(0.005 * target, tokens_per_word)
    assert len(asked) <= 9


def test_a_tokenizer_that_always_says_the_same_ends_the_search() -> None:
    async def count(sample: str) -> int:
        return 10

    assert asyncio.run(fitted(count, 1, TASK, 5000)).text.endswith(TASK.text)


def test_no_depth_is_the_task_alone() -> None:
    async def count(sample: str) -> int:
        raise AssertionError("must not be asked")

    assert asyncio.run(fitted(count, 1, TASK, 0)) == TASK


@pytest.mark.parametrize(
    ("tried", "guess"),
    [
        ({0: 100, 100: 300}, 450),  # 2 tokens a word: 1000 needs 350 words more than the 100 that made 300
        ({0: 100, 100: 100}, 0),  # no slope: stay at the nearest
        ({600: 1300, 500: 1100}, 450),
    ],
)
def test_next_guess(tried: dict[int, int], guess: int) -> None:
    assert next_guess(tried, 1000) == guess


@pytest.mark.parametrize(
    ("context", "answer", "quick", "expected"),
    [
        (262144, 200, False, (8192, 32768, 98304)),
        (65536, 200, False, (8192, 32768)),
        (8192, 200, False, (1982, 3964, 7928)),  # 8192 - 200 - 64 = 7928
        (2048, 8, False, (494, 988, 1976)),
        (262144, 64, True, (192, 384, 768)),
    ],
)
def test_the_ladder(context: int, answer: int, quick: bool, expected: tuple[int, ...]) -> None:
    assert depths(context, answer, quick) == expected


def test_an_unknown_context_needs_depths() -> None:
    with pytest.raises(BadRequest, match="--depths"):
        depths(None, 8, False)
