"""The shipped prompts are what the README says, and a held-out prompt is never one of the fit."""

import hashlib
import itertools
from pathlib import Path

import pytest

from ablit import prompts
from bench.errors import BadRequest

SIDES = sorted({side for pair in prompts.PAIRS.values() for side in pair})


@pytest.mark.parametrize("side", SIDES)
def test_enough_of_each(side: str) -> None:
    assert len(prompts.shipped(side, "held-out").texts) >= 100
    assert len(prompts.shipped(side, "fit").texts) >= 64


def test_no_prompt_twice_in_all_files() -> None:
    files = [prompts.shipped(side, split) for side, split in itertools.product(SIDES, ("fit", "held-out"))]
    every = [prompts.normal(text) for file in files for text in file.texts]
    assert len(files) == 12
    assert len(every) == len(set(every)) >= 12 * 64


def test_held_out_topics_are_not_those_of_the_fit() -> None:
    """The topic is what the prompts on one place of two sides share: the longest run of words that both have."""
    for one, other in prompts.PAIRS.values():
        topics = {}
        for split in ("fit", "held-out"):
            pairs = zip(prompts.shipped(one, split).texts, prompts.shipped(other, split).texts, strict=True)
            topics[split] = {_common(a, b) for a, b in pairs}
        assert len(topics["fit"]) >= 64
        assert not topics["fit"] & topics["held-out"]


def _common(a: str, b: str) -> str:
    words = [word.strip(".,:?!").casefold() for word in a.split()]
    text = " " + " ".join(word.strip(".,:?!").casefold() for word in b.split()) + " "
    runs = [" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    return max((run for run in runs if f" {run} " in text), key=len)


def test_sha256_is_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"# note\nOne.\n\n  Two. \n")
    assert prompts.read(path) == prompts.Prompts("a.txt", ("One.", "Two."), hashlib.sha256(b"# note\nOne.\n\n  Two. \n").hexdigest())


def test_a_file_made_from_a_dataset_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("# dataset a/b at 0, file x.csv, column p; rows left out: 1 repeated\nOne.\nTwo.\n")
    assert prompts.read(path).source == "dataset a/b at 0, file x.csv, column p; rows left out: 1 repeated"
    assert prompts.read(path).first(1).source == prompts.read(path).source
    path.write_text("# datasets are fine\nOne.\n# dataset of mine\n")
    assert prompts.read(path).source == ""


def test_duplicates_between_fit_and_held_out() -> None:
    fit, held_out = prompts.Prompts("fit.txt", ("Explain  Rain.",), "0"), prompts.Prompts("held.txt", ("Hello", "EXPLAIN rain."), "1")
    with pytest.raises(BadRequest, match=r"held\.txt: held out, but the direction was fitted on it \(fit\.txt\): 'EXPLAIN rain\.'"):
        prompts.apart([fit], [held_out])
    prompts.apart([fit], [prompts.Prompts("held.txt", ("Explain snow.",), "1")])


FIT = prompts.Prompts("fit.txt", ("Explain rain.", "Explain snow."), "a" * 64)
OTHER = prompts.Prompts("other.txt", ("Go on about rain.",), "b" * 64)
NOTES = {"positive": "fit.txt", "positive_sha256": "a" * 64, "negative": "other.txt", "negative_sha256": "b" * 64}
APART = prompts.Prompts("held.txt", ("Explain fog.",), "c" * 64)


def test_a_held_out_file_that_is_the_directions_fit() -> None:
    """Known by its sha256 alone: the user names no fit, and the name is another."""
    for each in (FIT, OTHER, prompts.Prompts("renamed.txt", FIT.texts[:1], "a" * 64)):
        with pytest.raises(BadRequest, match=f"{each.name}: held out, but the direction was fitted on this very file"):
            prompts.unlike_fit([APART, each], [], NOTES)


def test_a_held_out_prompt_of_a_shipped_fit() -> None:
    fit = prompts.shipped("casual", "fit")
    held = prompts.Prompts("held.txt", ("Explain fog.", fit.texts[7].upper()), "c" * 64)
    notes = {"positive_sha256": fit.sha256, "negative_sha256": prompts.shipped("formal", "fit").sha256}
    with pytest.raises(BadRequest, match=r"fitted on it \(casual\.fit\.txt\)"):
        prompts.unlike_fit([held], [], notes)
    assert prompts.unlike_fit([APART], [], notes) is None


def test_what_is_said_of_a_fit_that_is_not_at_hand() -> None:
    unchecked = "held-out prompts were not checked against the fit"
    files = "name the same files with --positive and --negative"
    assert prompts.unlike_fit([APART], [], NOTES) == f"{unchecked} on fit.txt and other.txt: {files}"
    assert prompts.unlike_fit([APART], [FIT], NOTES) == f"{unchecked} on other.txt: {files}"
    # the named files are not those that the direction was made of
    strange = [prompts.Prompts("fit.txt", ("x",), "d" * 64), OTHER]
    assert prompts.unlike_fit([APART], strange, NOTES) == f"{unchecked} on fit.txt: {files}"
    assert prompts.unlike_fit([APART], [FIT, OTHER], NOTES) is None
    assert str(prompts.unlike_fit([APART], [FIT], {})).startswith(f"{unchecked}: the direction file does not say")
    assert prompts.unlike_fit([APART], [FIT, OTHER], {}) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has no prompt"), (b"# only\n", "has no prompt"), (b"a b\nA  b\n", "twice: 'A  b'"), (b"\xff\xfe", "cannot be read")],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(BadRequest, match=message):
        prompts.read(tmp_path / "bad.txt")


def test_missing_file_and_too_many(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        prompts.read(tmp_path / "none.txt")
    with pytest.raises(BadRequest, match="has 2 prompts: 3 cannot be taken"):
        prompts.Prompts("p", ("a", "b"), "0").first(3)
