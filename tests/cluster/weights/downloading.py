"""`python -m tests.cluster.weights.downloading`: what `invoke download` does, for a head that is this machine.

The settings come from the environment alone. In a process of its own, because huggingface_hub reads its variables when it is imported.
"""

import sys
from pathlib import Path

from cluster import session, settings
from cluster.errors import LaunchError
from cluster.weights import download


def main() -> int:
    effective = settings.load({"kit": "spark2"}, path=Path("/nonexistent/.env"))
    try:
        with session.opened(effective) as cluster:
            download.download(cluster, lambda text: print(text, file=sys.stderr))
    except KeyboardInterrupt:
        return 1
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
