"""Small files that a launch needs on every node, put there by the agent: nothing has to be copied by hand or shared."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.engines import vllm
from cluster.errors import LaunchError
from cluster.plan import Step, run_dir
from cluster.session import Cluster

LIMIT_S = 60.0
FOLDER = "files"


@dataclass(frozen=True)
class ModelFolder:
    """What the head's copy of the model says of itself: config.json as text, and name -> bytes of its weight files."""

    config: str
    sizes: Mapping[str, int]

    @property
    def text(self) -> dict[str, Any]:
        """The configuration of the language model: the whole, or its part text_config."""
        plain = json.loads(self.config)
        found: dict[str, Any] = plain.get("text_config") or plain
        return found


def files(cluster: Cluster, contents: Mapping[str, bytes]) -> Mapping[str, str]:
    """Write them into the state folder of every node (role -> absolute folder there), over what has the same name. Raises LaunchError."""
    texts = {name: base64.b64encode(content).decode() for name, content in contents.items()}
    steps = []
    for rank in cluster.ranks:
        request = {"action": "place_write", "name": "small files", "folder": f"{run_dir(rank)}/{FOLDER}", "files": texts}
        steps.append(Step(rank.role, f"write {', '.join(contents)} into {run_dir(rank)}/{FOLDER}", request, LIMIT_S))
    answers = cluster.nodes.run(steps).all_or_raise("putting small files on the nodes")
    return {role: str(answer["folder"]) for role, answer in answers.items()}


def model(cluster: Cluster) -> ModelFolder:
    """The model that the kit serves, as it lies on the head. Raises LaunchError when it is not there yet."""
    head = cluster.ranks[0]
    folder = vllm.model_folders(head)[0]
    request = {"action": "place_read", "name": "the model", "folder": folder}
    answer = cluster.nodes.run([Step(head.role, f"read {folder}/config.json", request, LIMIT_S)]).all_or_raise("looking at the model")
    found = answer[head.role]
    if found["config"] is None:
        raise LaunchError(
            f"no model in {folder}: there is no readable config.json", node=head.role, hint="invoke download, or invoke up once"
        )
    return ModelFolder(found["config"], found["sizes"])
