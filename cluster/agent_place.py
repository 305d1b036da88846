"""The node agent, part for topic "place": small files into the state folder, and what a model's folder holds. Standard library only.

Sent after agent.py and agent_cluster.py in the same program (see agent_client.py), so the names below come from there.
"""

# mypy: ignore-errors

import contextlib

with contextlib.suppress(ImportError):  # sent as one text: everything is here already
    from cluster.agent import ACTIONS, expanded

import base64
import json
import os
import tempfile


def place_write(request):
    """Write request["files"], name -> base64, into the folder; readable for a container's user. The folder's absolute path."""
    (folder,) = expanded([request["folder"]])
    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in request["files"].items():
            # a name of its own: nodes that share a home write the same file at the same time
            number, begun = tempfile.mkstemp(dir=folder)
            with open(number, "wb") as file:
                file.write(base64.b64decode(text))
            os.chmod(begun, 0o644)
            os.replace(begun, os.path.join(folder, os.path.basename(name)))
    except OSError as error:
        raise SystemExit(f"cannot write into {folder}: {error.strerror}") from error
    return {"folder": folder}


def place_read(request):
    """config.json of a model's folder as text, None where there is none, and the sizes of its weight files in bytes."""
    (folder,) = expanded([request["folder"]])
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = file.read()
        json.loads(config)
    except (OSError, ValueError):
        return {"config": None, "sizes": {}}
    names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    return {"config": config, "sizes": {name: os.path.getsize(os.path.join(folder, name)) for name in names}}


ACTIONS |= {"place_write": place_write, "place_read": place_read}
