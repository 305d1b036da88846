"""Receipts: seal, schema, recomputation, privacy, and files."""

import getpass
import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench import receipt as receipts
from bench.check import check
from bench.errors import BadRequest, InvalidMeasurement
from bench.provenance import without_private
from bench.receipt import canonical, find, read, seal, seal_of, write
from tests.bench.samples import sample

SCHEMA = Path(receipts.__file__).parent / "schema" / "receipt-v1.json"
ROOT = Path(receipts.__file__).parents[1]


def _committed() -> list[Path]:
    """The receipts that belong to the repository: a user's own, untracked ones are no matter of its tests."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "results/receipts/*.json"], capture_output=True, text=True, check=True)
    return [ROOT / line for line in done.stdout.splitlines() if "/invalid/" not in line]


COMMITTED = _committed()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "r.json"
    write(seal(sample()), file)
    return file


def edit(path: Path, change: Callable[[dict[str, Any]], None], *, reseal: bool) -> None:
    plain = json.loads(path.read_text())
    change(plain)
    if reseal:
        plain["seal"] = seal_of(plain)
    path.write_text(json.dumps(plain))


def test_a_sound_receipt_passes(path: Path) -> None:
    assert check(path).summary.runs == 2


def test_seal_by_hand() -> None:
    plain = {"b": "ä", "a": [1, 2.5], "seal": "whatever"}
    assert canonical({"b": "ä", "a": [1, 2.5]}) == '{"a":[1,2.5],"b":"ä"}'
    # printf '{"a":[1,2.5],"b":"\303\244"}' | sha256sum
    assert seal_of(plain) == "sha256:e738b52034d02476d960450e3b24458dc66114240edaf8b1fcab576a01ae0897"


def change(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(plain: dict[str, Any]) -> None:
        inner: Any = plain
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return apply


def test_an_edit_breaks_the_seal(path: Path) -> None:
    edit(path, change("summary", "decode_tok_s", "median", value=99.0), reseal=False)
    with pytest.raises(InvalidMeasurement, match="field seal"):
        check(path)


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("summary", "decode_tok_s", "median"), 99.0, r"summary\.decode_tok_s\.median"),
        (("summary", "acceptance", "acceptance_length"), 9.0, r"summary\.acceptance\.acceptance_length"),
        (("runs", 1, "metrics", "ttft_s"), 0.001, r"runs\.1\.metrics\.ttft_s"),
        (("runs", 0, "isolation", "held"), False, r"runs\.0\.isolation\.held"),
        (("runs", 0, "trace", "text"), "nan", r"failed_gates"),
        (("valid",), False, "valid"),
        (("coherence", 0, "passed"), False, r"coherence\.0\.passed"),
    ],
)
def test_a_resealed_edit_is_found_by_recomputation(path: Path, keys: tuple[Any, ...], value: Any, field: str) -> None:
    edit(path, change(*keys, value=value), reseal=True)
    with pytest.raises(InvalidMeasurement, match=f"field {field}"):
        check(path)


@pytest.mark.parametrize(
    ("apply", "field"),
    [
        (change("receipt", value="spark-lab/receipt/v99"), "receipt"),
        (change("extra", value=1), "extra"),
        (change("protocol", "runs", value="many"), r"protocol\.runs"),
        (lambda plain: plain.pop("summary"), "summary"),
        (change("runs", 0, "trace", "kinds", value="c"), r"runs\.0\.trace"),
    ],
)
def test_a_schema_fault_is_named(path: Path, apply: Callable[[dict[str, Any]], None], field: str) -> None:
    edit(path, apply, reseal=True)
    with pytest.raises(InvalidMeasurement, match=f"field {field}"):
        check(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"receipt": NaN}', "null"])
def test_what_is_no_receipt_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidMeasurement):
        read(tmp_path / "x.json")


def test_the_schema_file_accepts_a_receipt(path: Path) -> None:
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("committed", COMMITTED, ids=lambda path: path.name)
def test_committed_receipts_are_sound_and_private(committed: Path) -> None:
    assert check(committed).valid
    plain = json.loads(committed.read_text())
    assert without_private(plain["system"]) == plain["system"]


def test_there_are_committed_receipts() -> None:
    assert COMMITTED


def test_private_words_are_removed() -> None:
    home, user, host = str(Path.home()), getpass.getuser(), socket.gethostname()
    dirty = {"a": f"{home}/models/x", "b": [f"run by {user} on {host}"], "d": 5, "e": f"x{user}x"}
    clean = without_private(dirty)
    assert clean["a"] == "(removed)/models/x"
    assert clean["b"] == ["run by (removed) on (removed)"]
    assert clean["d"] == 5
    assert clean["e"] == f"x{user}x"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://10.77.0.1:8888/v1", "http://(removed):8888/v1"),
        ("fe80::1:2:3:4 up", "(removed) up"),
        ("from 192.168.0.7.", "from (removed)."),
        ("version 1.2.3 at 12:30:01", "version 1.2.3 at 12:30:01"),
        ("6.18.5 #1 SMP", "6.18.5 #1 SMP"),
    ],
)
def test_addresses_are_removed(text: str, clean: str) -> None:
    assert without_private(text) == clean


def test_writing_leaves_no_half_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "r.json"
    write(seal(sample()), target)
    before = target.read_text()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write(seal(sample(arm="other")), target)
    assert target.read_text() == before


def test_find_takes_files_and_folders_and_leaves_invalid_ones_aside(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "invalid/c.json", "note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "empty").mkdir()
    assert [file.name for file in find([tmp_path])] == ["a.json", "b.json"]
    with pytest.raises(BadRequest, match="no such receipt"):
        find([tmp_path / "missing.json"])
    with pytest.raises(BadRequest, match="no receipt in"):
        find([tmp_path / "empty"])
