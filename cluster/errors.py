"""The launcher's expected failures. Each is one message: what failed, where, what ran, the last lines, what to try next."""

from __future__ import annotations

from collections.abc import Sequence

DOCKER_HINT = "start docker there (sudo systemctl start docker); the login must be in the group docker"


class LaunchError(Exception):
    """A step, check or gate failed. `str()` is the whole message; further lines hold the evidence."""

    exit_code = 1

    def __init__(self, what: str, *, node: str = "", ran: str = "", tail: Sequence[str] = (), hint: str = "") -> None:
        lines = [f"{node}: {what}" if node else what]
        if ran:
            lines.append(f"ran: {ran}")
        if tail:
            lines += ["last lines:", *(f"  {line}" for line in tail)]
        if hint:
            lines.append(f"try: {hint}")
        super().__init__("\n".join(lines))


class BadSettings(LaunchError):
    """A setting that cannot be used. Nothing was touched."""

    exit_code = 2


class Unreachable(LaunchError):
    """The node was not reached: `what` happened, and `hint`, what to try."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.what, self.hint = what, hint
