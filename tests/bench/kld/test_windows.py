"""The sealed texts and how they are cut."""

import shutil
from pathlib import Path

import pytest

from bench.errors import BadRequest, InvalidMeasurement
from bench.kld import windows
from bench.kld.windows import Panel, Text


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(windows.FOLDER, tmp_path / "panel"))


def test_the_shipped_panel_is_whole() -> None:
    panel = windows.load()
    assert [text.stratum for text in panel.texts] == ["prose", "technical", "code", "dialogue", "structured"]
    assert [text.windows for text in panel.texts] == [6, 10, 9, 5, 10]
    assert {text.licence for text in panel.texts} == {"MIT"}
    assert panel.sha256 == "006f052c8a04f31b4c471cbef2b6aea1f8d8862e9ece9d58d2abf722a53d6e81"
    bytes_as_tokens = windows.cut(panel, lambda text: list(text.encode()))
    assert sum(window.positions for window in bytes_as_tokens) == 20_480


def test_a_changed_text_is_refused(copy: Path) -> None:
    path = copy / "code.txt"
    path.write_bytes(path.read_bytes().replace(b"def ", b"deF ", 1))
    with pytest.raises(InvalidMeasurement, match=r"code\.txt is not the sealed text"):
        windows.load(copy)


def test_a_missing_text_is_refused(copy: Path) -> None:
    (copy / "prose.txt").unlink()
    with pytest.raises(InvalidMeasurement, match=r"prose\.txt of the panel cannot be read"):
        windows.load(copy)


@pytest.mark.parametrize("text", ["not = [toml", "name = 'x'\n[[text]]\nstratum = 'a'\n"])
def test_a_bad_panel_file_is_refused(copy: Path, text: str) -> None:
    (copy / "panel.toml").write_text(text)
    with pytest.raises(BadRequest, match="is no panel"):
        windows.load(copy)


PANEL = Panel("two", (Text("a", "0123456789", 2, "MIT", "x"), Text("b", "9876543210", 3, "MIT", "y")))


def test_windows_follow_one_another_and_hold_one_token_more_than_positions() -> None:
    found = windows.cut(PANEL, lambda text: [int(letter) for letter in text], positions=2)
    assert [(w.name, w.tokens) for w in found] == [
        ("a-0", (0, 1, 2)),
        ("a-1", (3, 4, 5)),
        ("b-0", (9, 8, 7)),
        ("b-1", (6, 5, 4)),
        ("b-2", (3, 2, 1)),
    ]
    assert [w.positions for w in found] == [2] * 5
    # printf '0 1 2' | sha256sum
    assert found[0].sha256 == "b31087bb077992314c6daca3f5a81774c63aed0857f65d92d63c6f147db3958c"
    assert len(windows.cut(PANEL, lambda text: [int(letter) for letter in text], positions=2, per_stratum=1)) == 2


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"the b text has 10 tokens with this tokenizer; 3 windows of 4 tokens need 12"):
        windows.cut(PANEL, lambda text: [1] * 10, positions=3)
