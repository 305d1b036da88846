"""A task's flags as one frozen dataclass: declared once with type, limits and help, parsed and validated here."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cli.args import choice, integer, integers, number
from cli.main import task


@dataclass(frozen=True)
class Rule:
    """How the text of one flag becomes its value. kind: text, whole (int), number (float), list (ints), switch (bool)."""

    help: str
    kind: str = "text"
    low: float = 0
    high: int | None = None
    choices: Sequence[str] = ()

    def parse(self, name: str, given: Any) -> Any:
        """The value, None when not given. Raises BadArgument."""
        if self.kind == "switch" or given is None:
            return given
        if self.kind == "whole":
            return integer(name, given, low=int(self.low), high=self.high)
        if self.kind == "list":
            return integers(name, given, low=int(self.low))
        if self.kind == "number":
            return number(name, given, low=self.low)
        return choice(name, given, self.choices) if self.choices else given


def flag(help: str, default: Any = None, **rule: Any) -> Any:
    """A dataclass field that is a command-line flag; `rule` as in Rule. The default shows in the help."""
    if isinstance(default, bool):
        rule["kind"] = "switch"
    shown = help if default is None or isinstance(default, bool) else f"{help} (default {default})"
    return dataclasses.field(default=default, metadata={"rule": Rule(shown, **rule)})


def flag_task(flags: type[Any], **options: Any) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """Like `task`, for a function (ctx, flags) whose second argument is an instance of the dataclass `flags`.

    invoke reads a task's flags from its signature: it is given one with a parameter for each field.
    """
    fields = dataclasses.fields(flags)
    rules: dict[str, Rule] = {field.name: field.metadata["rule"] for field in fields}
    # invoke guesses types from defaults and prints a traceback for a bad int: it sees only text and switches
    defaults = {f.name: f.default if rules[f.name].kind == "switch" else None for f in fields}
    parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in defaults.items()]
    first = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def decorate(function: Callable[[Any, Any], Any]) -> Any:
        def body(ctx: Any, **given: Any) -> Any:
            parsed = {name: rules[name].parse(name.replace("_", "-"), value) for name, value in given.items()}
            return function(ctx, flags(**{name: value for name, value in parsed.items() if value is not None}))

        body.__name__, body.__doc__, body.__module__ = function.__name__, function.__doc__, function.__module__
        body.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        help = {name.replace("_", "-"): rule.help for name, rule in rules.items()}
        return task(help=help, **options)(body)

    return decorate
