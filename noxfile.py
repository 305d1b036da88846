"""Checks of the code. lint, types and tests run in the locked environment that `./lab` made, which is what users run in."""

import os
import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"


def _python(session: nox.Session, *args: str) -> None:
    session.run(sys.executable, "-m", *args, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and formatting."""
    _python(session, "ruff", "check", ".")
    _python(session, "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict."""
    _python(session, "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that needs neither root nor a GPU; the real 135M model is part of it."""
    ci = ["-p", "no:cacheprovider"] if os.environ.get("CI") else []
    _python(session, "pytest", *ci, *(session.posargs or ["tests"]))
