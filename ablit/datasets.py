"""Prompts from a dataset of the Hugging Face Hub: which one is meant, and its rows as a prompt file. ablit/tasks.py fetches.

    hf:ORG/NAME[@REVISION][:FILE[:COLUMN[:OTHER=VALUE]]]

FILE is a .csv, .tsv, .jsonl, .json, .txt or .parquet of the dataset, or the name of a split that has one such file; COLUMN the one that
holds the prompts; OTHER=VALUE keeps only the rows whose column OTHER says VALUE. A split in several files
(train-00000-of-00003.parquet, or train/0000.parquet as on the Hub's branch refs/convert/parquet) is one set, whichever part is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablit import rows
from ablit.prompts import DATASET, normal
from bench.errors import BadRequest

PREFIX = "hf:"
COLUMNS = ("prompt", "text", "instruction", "question")  # taken when no column is named, the first that is there
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".parquet")
_WORD = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::([^:]+))?(?::([^:=]+))?(?::([^:=]+)=([^:]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_NUMBERED = re.compile(r"(.+)/\d{4}(\.parquet)")


@dataclass(frozen=True)
class Wanted:
    """A parsed word. `only`: column and value of the rows to keep."""

    word: str
    repo: str
    revision: str | None = None
    file: str | None = None
    column: str | None = None
    only: tuple[str, str] | None = None


def parsed(word: str) -> Wanted:
    """Raises BadRequest for a word of another form."""
    match = _WORD.fullmatch(word)
    if not match:
        raise BadRequest(f"{word!r} names no dataset\ntry: hf:ORG/NAME@REVISION:FILE.csv:COLUMN, with :OTHER=VALUE for some of the rows")
    repo, revision, file, column, name, value = match.groups()
    return Wanted(word, repo, revision, file, column, (name, value) if name else None)


# --- which files ---


def pinned(wanted: Wanted) -> tuple[str, ...]:
    """The files, where the word alone tells them: a full commit, and a file whose name says how many parts there are. Else none."""
    file = wanted.file or ""
    told = _COMMIT.fullmatch(wanted.revision or "") and file.endswith(ENDINGS) and not _NUMBERED.fullmatch(file)
    return _parts(file, ()) if told else ()


def files_of(wanted: Wanted, names: Sequence[str]) -> tuple[str, ...]:
    """The wanted set among the dataset's files, its parts in order. Raises BadRequest: it is not there, parts of it are not, or none is
    named and there is not exactly one."""
    readable = sorted(name for name in names if name.endswith(ENDINGS))
    sets = sorted({_parts(name, readable) for name in readable})
    named = [each for each in sets if wanted.file is None or wanted.file in each]
    found = named or [each for each in sets if wanted.file in _split_names(each[0])]
    if len(found) != 1:
        raise BadRequest(_no_one_set(wanted, found, sets))
    if missing := [name for name in found[0] if name not in readable]:
        raise BadRequest(f"dataset {wanted.repo}: parts of {found[0][0]} are not there: {', '.join(missing)}\ntry: another revision")
    return found[0]


def _no_one_set(wanted: Wanted, found: Sequence[tuple[str, ...]], sets: Sequence[tuple[str, ...]]) -> str:
    what = f"has {len(found)} sets called {wanted.file}" if found else f"has no file {wanted.file} that can be read"
    if wanted.file is None:
        what = f"has {len(sets)} files that can be read"
    there = ", ".join(shown(each) for each in (found or sets)[:20]) or f"none of {', '.join(ENDINGS)}"
    return f"dataset {wanted.repo} {what}: {there}\ntry: hf:{wanted.repo}:FILE"


def _parts(file: str, names: Sequence[str]) -> tuple[str, ...]:
    """All files of the set that `file` belongs to: those that its name counts, else the numbered ones beside it among `names`."""
    if match := _SHARD.fullmatch(file):
        stem, count, ending = match[1], int(match[3]), match[4]
        return tuple(f"{stem}-{part:05}-of-{count:05}{ending}" for part in range(count)) or (file,)
    if match := _NUMBERED.fullmatch(file):
        beside = (other for name in names if (other := _NUMBERED.fullmatch(name)) and other.groups() == match.groups())
        return tuple(other[0] for other in beside) or (file,)
    return (file,)


def _split_names(file: str) -> tuple[str, str]:
    """What a set may be called by: data/test for data/test-00000-of-00001.parquet, data/test.csv and data/test/0000.parquet; and test."""
    match = _SHARD.fullmatch(file) or _NUMBERED.fullmatch(file)
    stem = match[1] if match else file.rpartition(".")[0]
    return stem, stem.rpartition("/")[2]


def shown(files: Sequence[str]) -> str:
    """A set of files by its first."""
    return files[0] if len(files) == 1 else f"{files[0]} (first of {len(files)} parts)"


# --- their prompts ---


@dataclass(frozen=True)
class Taken:
    """What a set of a dataset gave: the prompts in order, the column that holds them, and how many of its rows were left out because their
    prompt had come before (`repeated`), or because they had none (`unfit`: empty, or a remark of a prompt file, which begins with #)."""

    column: str
    prompts: tuple[str, ...]
    repeated: int = 0
    unfit: int = 0

    @property
    def left_out(self) -> str:
        """`2 repeated, 1 empty or a remark`; empty for none."""
        counts = {"repeated": self.repeated, "empty or a remark": self.unfit}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def taken(wanted: Wanted, contents: Mapping[str, bytes]) -> Taken:
    """Each prompt of the set's files on one line, the first of several alike. Raises BadRequest naming the file, and its columns where the
    wanted one is not there."""
    texts: list[str] = []
    column = wanted.column
    for file, content in contents.items():
        column, more = _texts(wanted, column, file, content)
        texts += more
    where = f"{wanted.repo}: {shown(list(contents))}"
    if not texts:
        raise BadRequest(f"{where} has no row{_which(wanted)}")
    fit = [line for line in texts if line and not line.startswith("#")]
    found: dict[str, str] = {}
    for line in fit:
        found.setdefault(normal(line), line)
    if not found:
        raise BadRequest(f"{where} has no prompt in column {column}{_which(wanted)}")
    return Taken(str(column), tuple(found.values()), len(fit) - len(found), len(texts) - len(fit))


def _texts(wanted: Wanted, column: str | None, file: str, content: bytes) -> tuple[str | None, list[str]]:
    """The prompt column of one file, and its values on one line each, of the rows that are wanted."""
    where = f"{wanted.repo}: {file}"
    table = rows.read(file, content, where)
    if not table.count:
        return column, []
    column = _column(wanted, column, table.names, where)
    values = table.column(column)
    if wanted.only:
        name, value = wanted.only
        if name not in table.names:
            raise BadRequest(f"{where} has no column {name}: {', '.join(table.names)}\ntry: one of these before =")
        marks, classes = table.column(name), table.classes.get(name, ())
        values = [each for each, mark in zip(values, marks, strict=True) if rows.says(mark, value, classes)]
    strange = next((each for each in values if not isinstance(each, str | None)), None)
    if strange is not None:
        raise BadRequest(f"{where}: column {column} holds {type(strange).__name__}, not text\ntry: hf:{wanted.repo}:FILE:COLUMN")
    return column, [" ".join(str(each or "").split()) for each in values]


def _which(wanted: Wanted) -> str:
    return f" where {'='.join(wanted.only)}" if wanted.only else ""


def _column(wanted: Wanted, column: str | None, names: Sequence[str], where: str) -> str:
    column = column or next((name for name in COLUMNS if name in names), names[0] if len(names) == 1 else None)
    if column is None or column not in names:
        raise BadRequest(f"{where} has no column {column or ' or '.join(COLUMNS)}: {', '.join(names)}\ntry: hf:{wanted.repo}:FILE:COLUMN")
    return column


def file_name(wanted: Wanted, commit: str, file: str, column: str) -> str:
    """What the prompt file is called: dataset, commit, and what was taken of it."""
    parts = [f"{wanted.repo}@{commit[:12]}", file, column, *(["=".join(wanted.only)] if wanted.only else [])]
    return re.sub(r"[^\w.@=-]+", "--", ":".join(parts)) + ".txt"


def file_text(wanted: Wanted, commit: str, files: Sequence[str], found: Taken) -> str:
    """A prompt file (ablit/prompts.py) that says where it is from: the same bytes however the dataset was named."""
    left_out = f"; rows left out: {found.left_out}" if found.left_out else ""
    first = f"{DATASET}{wanted.repo} at {commit}, file {shown(files)}, column {found.column}{_which(wanted)}{left_out}"
    return "\n".join([first, *found.prompts]) + "\n"
