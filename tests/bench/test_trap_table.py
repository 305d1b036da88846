"""The table of traps in docs/benchmark.md: every test that it names is there, and every trap has its line."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_A_CLIENTS = {20, 24}


def rows() -> list[list[str]]:
    """The cells of each line."""
    text = (ROOT / "docs/benchmark.md").read_text()
    table = text.partition("<!-- traps -->\n")[2].partition("<!-- /traps -->")[0]
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()[2:]]


def named_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_trap_of_a_client_has_a_line() -> None:
    numbers = [int(number) for row in rows() for number in row[0].split(",")]
    assert sorted(numbers) == [number for number in range(1, 25) if number not in NOT_A_CLIENTS]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].replace(", ", "-"))
def test_the_test_of_a_trap_is_there(row: list[str]) -> None:
    assert len(row) == 4
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[3])
    assert found, row[3]
    assert found[2] in named_in(ROOT / found[1])


def test_no_test_of_a_stream_trap_is_left_out() -> None:
    """A trap may have more tests than the one that the table names, but no number of them stands in the tests alone."""
    names = named_in(ROOT / "tests/bench/test_stream_traps.py")
    numbers = {number for name in names for number in re.findall(r"(?<=_)\d+(?=_)", name)}
    assert numbers <= {number for row in rows() for number in row[0].split(", ")}
