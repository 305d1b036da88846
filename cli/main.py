"""The task decorator and the translation of failures into exit codes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, overload

import invoke
from invoke.exceptions import Exit, ParseError
from invoke.parser import Parser
from invoke.program import Program


class BadArgument(Exception):
    """A value on the command line that cannot be used. Nothing was touched."""

    exit_code = 2


def complain(error: BaseException) -> None:
    """Print an expected failure to stderr: `error:` and the message, whose further lines are indented."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    print("\n".join([f"error: {first}", *(f"  {line}" for line in rest)]), file=sys.stderr)


@overload
def task(function: Callable[..., Any], /) -> Callable[..., Any]: ...
@overload
def task(function: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """invoke.task, with expected failures (see the package's docstring) printed and turned into their exit code.

    The wrapped function may return an int exit code. Ctrl-C ends with 1 and one line, a closed stdout pipe quietly with 0.
    """
    if function is None:
        return functools.partial(task, **options)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        code = _run(function, args, kwargs)
        if code:
            raise Exit(code=code)

    # One-letter flags would take letters away from invoke's own and from later flags: only long names are offered.
    return invoke.task(guarded, **{"auto_shortflags": False, **options})


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    for end in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal or a stopped service must clean up as Ctrl-C does
        if signal.getsignal(end) is not signal.SIG_IGN:  # nohup
            signal.signal(end, _interrupt)
    try:
        return function(*args, **kwargs) or 0
    except BrokenPipeError:
        # The reader of our stdout has seen enough (`| head`): point stdout at nothing, or the interpreter complains at exit.
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        complain(error)
        return int(code)


# A task with one of these flags takes plain words for it: flag name -> what several words are joined by.
_WORDS = {"paths": "\n", "text": " "}


def adapt_invoke() -> None:
    """Two changes to invoke's parser, which offers no hook for either.

    Unknown tasks and flags end with 2 (bad arguments): invoke itself ends with 1, which here means a failed step. And plain
    words may follow a task, none or many (`receipt.check results/receipts/*.json`): invoke has required single ones only.
    """
    parse, cleanup = Parser.parse_argv, Program.parse_cleanup

    def parse_argv(self: Parser, argv: list[str]) -> Any:
        takers = {name: flag for name, context in self.contexts.items() for flag in _WORDS if flag in context.args}
        with _parse_errors_end_with_2():
            return parse(self, words_as_flag(argv, takers))

    def parse_cleanup(self: Program) -> None:  # where `--help TASK` is looked up
        with _parse_errors_end_with_2():
            cleanup(self)

    Parser.parse_argv, Program.parse_cleanup = parse_argv, parse_cleanup  # type: ignore[method-assign]


@contextlib.contextmanager
def _parse_errors_end_with_2() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(message=f"error: {error}\n  try: invoke --list, or invoke --help TASK", code=2) from error


def words_as_flag(argv: list[str], takers: dict[str, str]) -> list[str]:
    """`check a b --json` -> `check --paths=a<newline>b --json` for the first task in `takers` (task name -> flag name)."""
    at = next((i for i, word in enumerate(argv) if word in takers), None)
    if at is None:
        return argv
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), argv[at + 1 :]))
    flag = takers[argv[at]]
    joined = [f"--{flag}={_WORDS[flag].join(words)}"] if words else []
    return [*argv[: at + 1], *joined, *argv[at + 1 + len(words) :]]
