"""The benchmark's expected failures; `exit_code` is what the process ends with (0 good, see the README's table)."""

from __future__ import annotations


class BenchError(Exception):
    """The server could not be measured, or a gate failed."""

    exit_code = 1


class BadRequest(BenchError):
    """Arguments that cannot work: wrong URL, model, key or value. Nothing was measured."""

    exit_code = 2


class InvalidMeasurement(BenchError):
    """A measurement, receipt or comparison that must not be used."""

    exit_code = 3
