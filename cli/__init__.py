"""What every task shares: the task decorators, value parsing, and one way to fail.

An exception that carries an `exit_code` attribute is an expected failure: its text is printed to stderr and the process ends
with that code. `cluster` and `bench` define their own such exceptions; this package knows neither.
"""

from cli.args import choice, integer, integers, number
from cli.flags import flag, flag_task
from cli.main import BadArgument, adapt_invoke, task

__all__ = ["BadArgument", "adapt_invoke", "choice", "flag", "flag_task", "integer", "integers", "number", "task"]
