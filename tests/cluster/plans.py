"""Settings for plan tests: every kit with addresses, nothing from this machine's environment."""

from pathlib import Path

from cluster import settings
from cluster.settings import Effective

ADDRESSES = {"HEAD_IP": "10.0.0.1", "WORKER_IP": "10.0.0.2", "WORKER2_IP": "10.0.0.3", "WORKER3_IP": "10.0.0.4"}
NOWHERE = Path("/nonexistent/.env")


def effective(kit: str, **changed: str) -> Effective:
    """The kit's settings with `changed` (upper-case names) as environment."""
    addresses = {} if kit in ("local", "twin") else ADDRESSES
    return settings.load({"kit": kit}, environ={**addresses, **changed}, path=NOWHERE)
