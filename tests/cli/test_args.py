"""Parsing of command-line values, in process: what is taken, what is refused and how it is said."""

import dataclasses
import re
from typing import Any

import pytest

import cli
from cli import BadArgument
from cli.flags import Rule
from cli.main import words_as_flag

TAKERS = {"receipt.check": "paths", "table": "paths", "ask": "text"}

# argv -> what invoke's parser is given
WORDS = {
    "no words": (["table"], ["table"]),
    "one word": (["table", "a.json"], ["table", "--paths=a.json"]),
    "two words": (["receipt.check", "a", "b"], ["receipt.check", "--paths=a\nb"]),
    "a blank in a word": (["table", "my file"], ["table", "--paths=my file"]),
    "words before a flag": (["table", "a", "b", "--json"], ["table", "--paths=a\nb", "--json"]),
    "flag only": (["table", "--json"], ["table", "--json"]),
    "text is joined by blanks": (["ask", "What", "is", "it?"], ["ask", "--text=What is it?"]),
    "text in one word": (["ask", "What is it?"], ["ask", "--text=What is it?"]),
    "an equals sign": (["ask", "a=b"], ["ask", "--text=a=b"]),
    "core flags in front": (["--echo", "table", "a"], ["--echo", "table", "--paths=a"]),
    "a task that takes no words": (["up", "--kit", "local"], ["up", "--kit", "local"]),
    "nothing": ([], []),
}


@pytest.mark.parametrize(("argv", "given"), WORDS.values(), ids=WORDS)
def test_words_as_flag(argv: list[str], given: list[str]) -> None:
    assert words_as_flag(argv, TAKERS) == given


GOOD: list[tuple[Any, Any]] = [
    (cli.integer("n", None, low=1), None),
    (cli.integer("n", "1", low=1), 1),
    (cli.integer("n", "12", low=1, high=12), 12),
    (cli.number("t", None, low=0), None),
    (cli.number("t", "0.5", low=0.5), 0.5),
    (cli.number("t", "1e3", low=0), 1000.0),
    (cli.integers("c", None, low=1), None),
    (cli.integers("c", "1, 2,4", low=1), (1, 2, 4)),
    (cli.choice("p", None, ["prose"]), None),
    (cli.choice("p", "prose", ["prose", "code"]), "prose"),
]


@pytest.mark.parametrize(("got", "expected"), GOOD)
def test_good_values(got: Any, expected: Any) -> None:
    assert got == expected
    assert type(got) is type(expected)


# kind and limits of a flag, its text -> the message
BAD = [
    (Rule("", "whole", low=1), "x", "--n takes a whole number, not 'x'"),
    (Rule("", "whole", low=1), "1.5", "--n takes a whole number, not '1.5'"),
    (Rule("", "whole", low=1), "", "--n takes a whole number, not ''"),
    (Rule("", "whole", low=1), "0", "--n is 0; allowed: 1 or more"),
    (Rule("", "whole", low=1, high=9), "10", "--n is 10; allowed: 1 to 9"),
    (Rule("", "number", low=0.5), "x", "--n takes a number, not 'x'"),
    (Rule("", "number", low=0.5), "0.4", "--n is 0.4; allowed: 0.5 or more"),
    (Rule("", "number", low=0.5), "nan", "--n is nan; allowed: 0.5 or more"),
    (Rule("", "number", low=0.5), "inf", "--n is inf; allowed: 0.5 or more"),
    (Rule("", "list", low=1), "1,,2", "--n takes a whole number, not ''"),
    (Rule("", "list", low=1), "1,0", "--n is 0; allowed: 1 or more"),
    (Rule("", choices=("on", "off")), "maybe", "--n is 'maybe'; allowed: on, off"),
    (Rule("", choices=("prose", "code")), "prosa", "--n is 'prosa'; allowed: prose, code; did you mean 'prose'?"),
]


@pytest.mark.parametrize(("rule", "text", "message"), BAD, ids=[f"{rule.kind} {text!r}" for rule, text, _ in BAD])
def test_bad_values(rule: Rule, text: str, message: str) -> None:
    with pytest.raises(BadArgument, match=f"^{re.escape(message)}$"):
        rule.parse("n", text)
    assert BadArgument.exit_code == 2


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of a task that exists only here."""

    max_runs: int = cli.flag("how many", 5, kind="whole", low=1)
    name: str | None = cli.flag("a name")
    quick: bool = cli.flag("be quick", False)


def test_flag_task_parses_into_its_dataclass() -> None:
    seen: list[Flags] = []
    task = cli.flag_task(Flags)(lambda ctx, flags: seen.append(flags))
    assert task.name == "<lambda>"
    body = task.body
    body(None)
    body(None, max_runs="7", name="x", quick=True)
    assert seen == [Flags(5, None, False), Flags(7, "x", True)]
    assert task.help == {"max-runs": "how many (default 5)", "name": "a name", "quick": "be quick"}
