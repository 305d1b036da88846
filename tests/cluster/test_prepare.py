"""What is refused before anything is moved: a missing model folder counts only where nothing will bring it."""

import pytest

from cluster.prepare import without_what_comes
from tests.cluster.plans import effective

HUB = "~/.cache/huggingface/hub"
MODEL = f"{HUB}/models--a--b/snapshots/{'1' * 40}"
CHOSEN = {"MODEL": "a/b", "MODEL_REVISION": "1" * 40, "SPEC_METHOD": "mtp"}


@pytest.mark.parametrize(
    ("changes", "head", "worker", "left"),
    [
        ({}, [MODEL], [MODEL], ([], [])),
        ({}, [MODEL, "/other"], [], (["/other"], [])),
        ({"SKIP_DOWNLOAD": "1"}, [MODEL], [MODEL], ([MODEL], [MODEL])),
        ({"SKIP_DOWNLOAD": "1"}, [], [MODEL], ([], [])),
        ({"SKIP_SYNC": "1"}, [MODEL], [MODEL], ([], [MODEL])),
        ({"NFS_SHARE": "1"}, [], [MODEL], ([], [MODEL])),
        ({"MODEL": "/nowhere"}, ["/nowhere"], ["/nowhere"], (["/nowhere"], ["/nowhere"])),
        ({"MODEL": "/nowhere"}, [], ["/nowhere"], ([], [])),
    ],
)
def test_folders_that_will_come_are_left_out(
    changes: dict[str, str], head: list[str], worker: list[str], left: tuple[list[str], ...]
) -> None:
    seen = {"head": {"missing_paths": head, "ports": {}}, "worker": {"missing_paths": worker, "ports": {}}}
    found = without_what_comes(effective("spark2", **{**CHOSEN, **changes}), seen)
    assert (found["head"], found["worker"]) == tuple({"missing_paths": paths, "ports": {}} for paths in left)
