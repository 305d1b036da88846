"""The .env reader: one row for each rule of its contract, one for each refusal, and three properties."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import dotenv
from cluster.errors import BadSettings

ENVIRON = {"HOME_DIR": "/home/me", "NOTHING": ""}

# the text of a file -> the values of all names in it
READ = {
    "plain": ("A=1", {"A": "1"}),
    "no newline at the end": ("A=1\nB=2", {"A": "1", "B": "2"}),
    "empty file": ("", {}),
    "only comments and blanks": ("# A=1\n\n  \t\n   # B=2\n", {}),
    "lower case, digits, underscore": ("_a9=x", {"_a9": "x"}),
    "indented": ("  A=1", {"A": "1"}),
    "outer blanks dropped": ("A=  x y \t", {"A": "x y"}),
    "blanks inside kept": ("A=x  y", {"A": "x  y"}),
    "equals sign inside": ("A=x=y==", {"A": "x=y=="}),
    "inline comment": ("A=1 # one", {"A": "1"}),
    "inline comment after a tab": ("A=1\t# one", {"A": "1"}),
    "# inside a value": ("A=http://h/#top", {"A": "http://h/#top"}),
    "# at the start of a value": ("A=#1", {"A": "#1"}),
    "comment instead of a value": ("A= # nothing yet", {"A": ""}),
    "backslash is plain": (r"A=C:\new\table", {"A": r"C:\new\table"}),
    "escaped dollar": (r"A=5\$", {"A": "5$"}),
    "dollar before nothing": ("A=5$ B=$.x", {"A": "5$ B=$.x"}),
    "empty": ("A=\nB=1", {"A": "", "B": "1"}),
    "empty, quoted": ("A=''\nB=\"\"", {"A": "", "B": ""}),
    "export": ("export A=1\nexport\tB=2", {"A": "1", "B": "2"}),
    "a name that starts like export": ("exported=1", {"exported": "1"}),
    "CRLF": ("A=1\r\nB='2'\r\nC=[3]\r\n\r\n", {"A": "1", "B": "2", "C": "[3]"}),
    "CRLF inside quotes": ("A='x\r\ny'\r\n", {"A": "x\ny"}),
    "byte-order mark": ("\ufeffA=1", {"A": "1"}),
    "byte-order mark before a comment": ("\ufeff# hello\nA=1", {"A": "1"}),
    "single quotes are literal": (r"""A='$HOME_DIR \n "x" # `y`'""", {"A": r"""$HOME_DIR \n "x" # `y`"""}),
    "single quotes over lines": ("A='1\n # 2\n\n3'\nB=4", {"A": "1\n # 2\n\n3", "B": "4"}),
    "double-quote escapes": (r'A="a\"b\\c\$d\ne\`f"', {"A": 'a"b\\c$d\ne`f'}),
    "other backslashes stay": (r'A="\d\t"', {"A": r"\d\t"}),
    "backslash before the closing quote": (r'A="x\\"', {"A": "x\\"}),
    "double quotes over lines": ('A="1\n2"\nB=3', {"A": "1\n2", "B": "3"}),
    "# inside double quotes": ('A="a # b"', {"A": "a # b"}),
    "the other quote inside": ("""A="it's"\nB='say "x"'""", {"A": "it's", "B": 'say "x"'}),
    "comment after a quote": ("A='1' # one\nB=\"2\"\t#two", {"A": "1", "B": "2"}),
    "JSON object": ('A={"b": {"c": [1, 2]}}', {"A": '{"b": {"c": [1, 2]}}'}),
    "JSON is taken as written": ('A={"b":  "$X ${Y}\\n"}  ', {"A": '{"b":  "$X ${Y}\\n"}'}),
    "JSON with # inside": ('A={"b": "x # y"} # z', {"A": '{"b": "x # y"}'}),
    "JSON with a brace in a text": ('A={"b": "}"}', {"A": '{"b": "}"}'}),
    "JSON list": ('A=["#", {"b": 1}]', {"A": '["#", {"b": 1}]'}),
    "JSON in single quotes": ("""A='{"b": 1}'""", {"A": '{"b": 1}'}),
    "$NAME from an earlier line": ("A=1\nB=$A/x$A", {"A": "1", "B": "1/x1"}),
    "${NAME} from an earlier line": ('A=1\nB="${A}0"', {"A": "1", "B": "10"}),
    "$NAME from the environment": ("A=$HOME_DIR/x", {"A": "/home/me/x"}),
    "an empty variable": ("A=x${NOTHING}y", {"A": "xy"}),
    "an earlier line wins over the environment": ("HOME_DIR=/a\nB=$HOME_DIR", {"HOME_DIR": "/a", "B": "/a"}),
    "an expanded value is not expanded again": ("A='$B'\nC=$A", {"A": "$B", "C": "$B"}),
}

# the text of a file -> words that the one message must hold
REFUSED = {
    "not an assignment": ("A=1\nhello", ".env line 2: not an assignment: hello"),
    "blanks around =": ("A = 1", ".env line 1: not an assignment: A"),
    "a name that starts with a digit": ("1A=1", ".env line 1: not an assignment: 1A"),
    "a name with a hyphen": ("MY-PORT=1", ".env line 1: not an assignment: MY-PORT"),
    "the same name twice": ("A=1\n\nB=2\nA=3", ".env line 4: A is set a second time (first on line 1)"),
    "the same name twice, exported": ("export A=1\nA=1", ".env line 2: A is set a second time (first on line 1)"),
    "unclosed single quote": ("B=1\nA='x\ny\n", ".env line 2: the opening ' is never closed"),
    "unclosed double quote": ('A="x\\"\n', '.env line 1: the opening " is never closed'),
    "text after a quote": ("A='1'2", ".env line 1: text after the closing '"),
    "a # that a shell would keep": ('A="1"#2', '.env line 1: text after the closing "'),
    "a quote inside an unquoted value": ("A=it's", ".env line 1: a quote inside an unquoted value"),
    "broken JSON": ('A={"b": 1', ".env line 1: the value starts like JSON but is not"),
    "JSON too deep": ("A=" + "[" * 100_000, ".env line 1: the value starts like JSON but is not"),
    "text after JSON": ("A=[1] x", ".env line 1: text after the JSON value"),
    "unknown reference": ("A=$NOWHERE", ".env line 1: $NOWHERE is not known here"),
    "unknown braced reference": ('A="${NOWHERE}"', ".env line 1: $NOWHERE is not known here"),
    "a reference to a later line": ("A=$B\nB=1", ".env line 1: $B is not known here"),
    "a reference to itself": ("A=$A", ".env line 1: $A is not known here"),
    "command substitution": ("A=$(id)", ".env line 1: commands are not run from this file"),
    "command substitution in double quotes": ('A="x $(id)"', ".env line 1: commands are not run from this file"),
    "backticks": ("A=`id`", ".env line 1: commands are not run from this file"),
    "a default value": ("A=${B:-1}", ".env line 1: only $NAME and ${NAME} are expanded"),
    "a shell parameter": ('A="pa$$word"', ".env line 1: only $NAME and ${NAME} are expanded"),
}


@pytest.mark.parametrize(("text", "values"), READ.values(), ids=READ)
def test_reads(text: str, values: dict[str, str]) -> None:
    assert {entry.name: entry.value for entry in dotenv.parse(text, ENVIRON)} == values


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(BadSettings, match=re.escape(message)):
        dotenv.parse(text, ENVIRON)


def test_entries_keep_order_and_first_line() -> None:
    entries = dotenv.parse("\nB='1\n2'\nA=3\n", {})
    assert [(entry.name, entry.line) for entry in entries] == [("B", 2), ("A", 4)]


def test_message_names_the_file() -> None:
    with pytest.raises(BadSettings, match=r"^my\.env line 1: "):
        dotenv.parse("nonsense", {}, "my.env")


@pytest.mark.parametrize(
    "line", ["KEY = hunter2", "KEY: hunter2", "KEY='hunter2'hunter2", "KEY=hunter2's", 'KEY={"hunter2"', "KEY=[1] hunter2"]
)
def test_no_value_in_a_message(line: str) -> None:
    """A malformed line may be the one that holds a secret."""
    with pytest.raises(BadSettings) as caught:
        dotenv.parse(line, {})
    assert "hunter2" not in str(caught.value)


@given(st.text(st.characters(exclude_characters="'\r", exclude_categories=["Cs"])))
def test_single_quotes_keep_any_text(value: str) -> None:
    assert dotenv.parse(f"A='{value}'\nB=1", {}) == (dotenv.Entry("A", value, 1), dotenv.Entry("B", "1", 2 + value.count("\n")))


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])))
def test_double_quotes_keep_any_escaped_text(value: str) -> None:
    escaped = re.sub(r'(["\\$`])', r"\\\1", value)
    assert dotenv.parse(f'A="{escaped}"', {}) == (dotenv.Entry("A", value, 1),)


@given(st.text() | st.text("AB=\"'\\$`(){}[]#\r\n \ufeff"))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadSettings):
        names = [entry.name for entry in dotenv.parse(text, {})]
        assert len(set(names)) == len(names)
