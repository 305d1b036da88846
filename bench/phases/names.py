"""The phases' names, for command lines: importing these costs nothing."""

from __future__ import annotations

DECODE = ("prose", "structured", "code", "json", "short-code")
DEEP = ("long-context", "prefill", "prefix", "mixed", "agents")
PHASES = (*DECODE, *DEEP, "open-loop")
