"""Failures of the Hub and its client as one sentence and one hint. Pure; it knows the client's exceptions by name and status only."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Why:
    """What happened, what to try, and whether another repository may help."""

    what: str
    hint: str
    other_repository: bool = False


_TOKEN = "HF_TOKEN=... (a read token of an account that has access), or hf auth login"


def explain(error: BaseException, label: str, has_token: bool) -> Why:
    """`error` as raised by the client for the repository called `label`."""
    chain = list(_chain(error))
    kinds = {type(each).__name__ for each in chain}
    if any(isinstance(each, OSError) and each.errno == errno.ENOSPC for each in chain):
        return Why("the disk of the cache is full", "df -h; files that arrived whole are kept, and the next download goes on")
    if any(isinstance(each, PermissionError) for each in chain):
        return Why(f"the cache cannot be written: {error}", "ls -ld of that folder; chown it to your login, or set HF_HOME")
    if "OfflineModeIsEnabled" in kinds:
        return Why("HF_HUB_OFFLINE=1: the Hub is not asked", "unset HF_HUB_OFFLINE, or bring the files by other means")
    status = next((code for each in chain if (code := _status(each))), None)
    if status is not None:
        return _by_status(status, kinds, label, has_token, _wait(chain))
    if kinds & {"ConnectError", "ConnectTimeout", "ReadTimeout", "ProxyError", "NetworkError", "RemoteProtocolError", "TimeoutException"}:
        return Why(f"the Hub was not reached: {error}", "check the network, a proxy (HTTPS_PROXY) or HF_ENDPOINT", other_repository=False)
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return Why(f"the download of {label} failed: {first}", "run it again: files that arrived whole are kept")


def _by_status(status: int, kinds: set[str], label: str, has_token: bool, wait: str) -> Why:
    if status == 429:
        more = "" if has_token else f"; requests with a token are limited less: {_TOKEN}"
        return Why(f"the Hub refuses more requests for now (429){wait}", f"wait and run it again: files that arrived whole are kept{more}")
    if "GatedRepoError" in kinds:
        return Why(f"{label} is gated ({status})", f"accept its terms on the Hub's page, then {_TOKEN}", other_repository=True)
    if "RevisionNotFoundError" in kinds:
        hint = "name a commit that its history on the Hub shows (of the served model: MODEL_REVISION)"
        return Why(f"{label} has no such revision", hint, other_repository=True)
    if status in (401, 403):
        why = "the token was not accepted" if has_token else "no token is set"
        hint = f"check the name; for a private repository: {_TOKEN}"
        return Why(f"the Hub denies {label} ({status}): it does not exist or is private, and {why}", hint, other_repository=True)
    if status == 404:
        return Why(f"the Hub has no {label} (404)", "check the repository's name and revision", other_repository=True)
    if status >= 500:
        return Why(f"the Hub failed ({status})", "run it again later: files that arrived whole are kept")
    return Why(f"the Hub answered {status} for {label}", "run it again; see the Hub's status page")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        yield at
        at = at.__cause__ or at.__context__


def _status(error: BaseException) -> int | None:
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code if isinstance(code, int) else None


def _wait(chain: list[BaseException]) -> str:
    """What the server said of when to come back."""
    for each in chain:
        headers = getattr(getattr(each, "response", None), "headers", None) or {}
        if headers.get("retry-after"):
            return f"; it asks to wait {headers['retry-after']} s"
        if headers.get("ratelimit"):
            return f"; it says {headers['ratelimit']}"
    return ""
