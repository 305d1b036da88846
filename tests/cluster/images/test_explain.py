"""What docker's words mean: texts of docker 20 to 29 and of public registries."""

import pytest

from cluster.images import explain

GHCR = 'Error response from daemon: Head "https://ghcr.io/v2/site/glm/manifests/1": denied: denied'
TEXTS = {
    "space": [
        "failed to register layer: Error processing tar file(exit status 1): write /x.so: no space left on device",
        "write /var/lib/docker/tmp/GetImageBlob1: no space left on device",
    ],
    "rate": [
        "toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating",
        "received unexpected HTTP status: 429 Too Many Requests",
        "denied: toomanyrequests: retry-after: 1s",
    ],
    "http": ['Get "https://10.0.0.1:5000/v2/": http: server gave HTTP response to HTTPS client'],
    "platform": ["no matching manifest for linux/arm64/v8 in the manifest list entries"],
    "depth": ["Error processing tar file(exit status 1): max depth exceeded"],
    "network": [
        'Get "https://ghcr.io/v2/": dial tcp: lookup ghcr.io on 127.0.0.53:53: server misbehaving',
        'Get "https://registry-1.docker.io/v2/": net/http: TLS handshake timeout',
        "request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
        "read tcp 10.0.0.1:4->1.2.3.4:443: read: connection reset by peer",
        'failed to do request: Head "https://x/v2/": EOF',
    ],
    "missing": [
        "manifest for ghcr.io/site/glm:2 not found: manifest unknown: manifest unknown",
        'failed to resolve reference "ghcr.io/site/glm:2": ghcr.io/site/glm:2: not found',
        "name unknown: repository name not known to registry",
    ],
    "denied": [
        GHCR,
        "pull access denied for site/glm, repository does not exist or may require 'docker login'",
        "unauthorized: authentication required",
        "no basic auth credentials",
    ],
    "unknown": ["something else", ""],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TEXTS.items() for text in texts])
def test_kinds(kind: str, text: str) -> None:
    assert explain.kind(["Pulling from site/glm", *text.splitlines()]) == kind


def test_denied_with_stored_credentials_suggests_a_logout() -> None:
    what, hint = explain.reason("denied", "ghcr.io/site/glm:1", ["ghcr.io"])
    assert what == "ghcr.io denies ghcr.io/site/glm:1"
    assert hint.startswith("docker logout ghcr.io on that node: credentials that have expired")
    assert (
        explain.reason("denied", "ghcr.io/site/glm:1", ["quay.io"])[1]
        == "check the name; for a private image: docker login ghcr.io on that node"
    )


@pytest.mark.parametrize(
    ("host", "stored", "known"),
    [
        ("docker.io", ["https://index.docker.io/v1/"], True),
        ("docker.io", ["docker.io"], True),
        ("docker.io", ["ghcr.io"], False),
        ("ghcr.io", ["https://ghcr.io"], True),
        ("ghcr.io", ["https://index.docker.io/v1/"], False),
        ("10.0.0.1:5000", ["10.0.0.1:5000"], True),
    ],
)
def test_logins(host: str, stored: list[str], known: bool) -> None:
    assert explain.has_login(host, stored) is known


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("space", "docker system df"),
        ("rate", "docker login ghcr.io"),
        ("http", '["ghcr.io"]'),
        ("platform", "linux/arm64"),
        ("depth", "squash"),
        ("network", "invoke ship --archive FILE.tar"),
        ("missing", "check name, tag and digest"),
        ("unknown", "docker's own words"),
    ],
)
def test_every_cause_has_something_to_try(kind: str, hint: str) -> None:
    assert hint in explain.reason(kind, "ghcr.io/site/glm:1")[1]
