"""What docker's last lines mean, and what to try. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cluster.images.identity import registry

# The first that fits decides; a rate limit also says "denied", and a missing repository may be a private one.
_KINDS = (
    ("space", r"no space left on device|not enough space"),
    ("rate", r"toomanyrequests|429 Too Many|rate limit"),
    ("http", r"server gave HTTP response to HTTPS client"),
    ("platform", r"no matching manifest for|does not match the specified platform|no match for platform"),
    ("depth", r"max depth exceeded"),
    (
        "network",
        r"dial tcp|no such host|i/o timeout|connection refused|connection reset|TLS handshake timeout|network is unreachable"
        r"|Client\.Timeout|deadline exceeded|proxyconnect|failed to do request|Temporary failure in name resolution",
    ),
    ("missing", r"manifest unknown|manifest for \S+ not found|name unknown|: not found\b"),
    ("denied", r"denied|unauthorized|authentication required|403 Forbidden|401 Unauthorized|no basic auth credentials"),
)


def kind(lines: Sequence[str]) -> str:
    """One word for the cause: space, rate, http, platform, depth, network, missing, denied, or unknown."""
    text = "\n".join(lines)
    return next((name for name, pattern in _KINDS if re.search(pattern, text, re.IGNORECASE)), "unknown")


def has_login(host: str, logged_in: Sequence[str]) -> bool:
    """Whether credentials are stored for the registry; docker stores those of docker.io under a URL."""
    names = {re.sub(r"^https?://|/.*$", "", entry) for entry in logged_in}
    return bool({host, "index.docker.io"} & names) if host == "docker.io" else host in names


def reason(cause: str, name: str, logged_in: Sequence[str] = ()) -> tuple[str, str]:
    """What happened to a pull or push of `name`, and what to try."""
    host = registry(name)
    known = has_login(host, logged_in)
    login = f"docker login {host} on that node"
    logout = f"docker logout {host} on that node: credentials that have expired are refused even for a public image"
    return {
        "space": ("the disk of docker is full", "docker system df; docker image prune; docker builder prune"),
        "rate": (f"{host} allows no more pulls for now", f"wait, or {login}; an image that is there already: SKIP_PULL=1"),
        "http": (f"{host} speaks plain HTTP", f'name it in "insecure-registries" of /etc/docker/daemon.json on every node: ["{host}"]'),
        "platform": (f"{name} is not made for this machine", "a Spark needs linux/arm64"),
        "depth": (f"{name} has too many layers for docker", "squash some layers of the image"),
        "network": (f"{host} was not reached", "check network, proxy and name; without a network: invoke ship --archive FILE.tar"),
        "missing": (f"{host} has no {name}", "check name, tag and digest in IMAGE"),
        "denied": (f"{host} denies {name}", logout if known else f"check the name; for a private image: {login}"),
    }.get(cause, (f"docker did not get {name}", "docker's own words are above"))
