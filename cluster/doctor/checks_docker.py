"""Docker and the image: whether it answers, is the same everywhere, and who else runs containers there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.doctor.finding import CLUSTER, Check, Finding, Kind, Scene, differing, each_node
from cluster.facts.node import Facts

MAX_LAYERS = 120  # loading fails at about 125 to 127 ("max depth exceeded")
STEERING = re.compile(r"^(NCCL_|GLOO_|TP_SOCKET_|VLLM_HOST_IP|UCX_NET)")

MISSING = Kind("docker-missing", "error", "every rank runs in a container", "K9", in_check=True)
SILENT = Kind("docker-silent", "error", "no rank can be started, and what runs is not known", "B1", in_check=True)
PERMISSION = Kind("docker-permission", "error", "the login may not use docker without sudo", in_check=True)
ROOTLESS = Kind("docker-rootless", "warning", "rootless containers end with the user's last session unless it lingers", "B3")
NO_RUNTIME = Kind("docker-no-gpu", "warning", "`--gpus all` fails without NVIDIA's container toolkit", "C8")
IMAGE_MISSING = Kind("image-missing", "error", "there is nothing to start", "C1 C2", in_check=True)
IMAGE_DIFFERS = Kind(
    "image-differs", "error", "ranks of different builds hang or fail in the first collective", "C1 C2 A17 A22", in_check=True
)
IMAGE_ARCH = Kind("image-architecture", "error", "a Spark is arm64", "C3")
IMAGE_LAYERS = Kind("image-layers", "warning", "docker refuses to load an image with 125 or more layers", "C6", in_check=True)
IMAGE_BAKED = Kind("image-baked-variables", "warning", "what the image sets wins wherever the settings are silent", "A11", in_check=True)
IMAGE_TAG = Kind("image-not-pinned", "info", "a tag can be pushed anew with another build", "C3")
FOREIGN_NAME = Kind("container-name", "error", "a container of the rank's name is there that this tool did not make", "G12", in_check=True)
FOREIGN = Kind("container-foreign", "warning", "it shares the GPU, and with unified memory all memory", "F2 J4")
OTHER_KIT = Kind("container-other-kit", "error", "one topology at a time: the ranks of another kit still run there", "J4")
RESTARTS = Kind("container-restarts", "warning", "a GPU container that fails and restarts for ever has taken down both nodes", "F9 F5")


def answers(facts: Facts, scene: Scene) -> Iterator[Finding]:
    docker = facts.docker
    if not scene.docker:
        return
    if not docker.installed:
        yield MISSING.at(facts.role, "there is no docker on the PATH of a non-login shell", "install docker, or fix the PATH")
    elif docker.problem and "permission denied" in docker.problem.lower():
        groups = ", ".join(facts.system.login.groups)
        fix = f"sudo usermod -aG docker {facts.system.login.user}, then log in anew"
        yield PERMISSION.at(facts.role, f"{facts.system.login.user} (groups {groups}) may not use docker", fix)
    elif docker.problem:
        yield SILENT.at(facts.role, docker.problem.splitlines()[0], "sudo systemctl start docker; journalctl -u docker -e")
    if docker.rootless:
        yield ROOTLESS.at(
            facts.role, "docker is rootless", f"the system's docker, or sudo loginctl enable-linger {facts.system.login.user}"
        )
    if scene.sparks and docker.answers and docker.runtimes is not None and "nvidia" not in docker.runtimes:
        what = f"docker's runtimes are {', '.join(docker.runtimes)}; nvidia is not among them"
        yield NO_RUNTIME.at(facts.role, what, "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker")


def image(facts: Facts, scene: Scene) -> Iterator[Finding]:
    docker, name = facts.docker, scene.effective.settings.image
    if not scene.docker or not docker.answers:
        return
    found = docker.image
    if found is None:
        yield IMAGE_MISSING.at(facts.role, f"there is no image {name}", "invoke build, pull or ship; IMAGE names it")
        return
    if scene.sparks and found.architecture not in (None, "arm64"):
        yield IMAGE_ARCH.at(facts.role, f"{name} is for {found.architecture}; expected arm64", "build it on a Spark")
    if len(found.layers) >= MAX_LAYERS:
        yield IMAGE_LAYERS.at(
            facts.role, f"{name} has {len(found.layers)} layers; at most {MAX_LAYERS - 1} are safe", "build it with fewer steps"
        )
    baked = {key: value for key, value in found.env.items() if STEERING.match(key)}
    if baked:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(baked.items()))
        yield IMAGE_BAKED.at(
            facts.role, f"{name} sets {shown}", "set the same names in the settings (they win), or build an image without them"
        )


def pinned(scene: Scene) -> Iterator[Finding]:
    """Once: it is the setting that is not pinned."""
    name = scene.effective.settings.image
    digests = [digest for facts in scene.nodes.values() if facts.docker.image for digest in facts.docker.image.digests]
    if scene.docker and digests and "@sha256:" not in name:
        yield IMAGE_TAG.at(CLUSTER, f"IMAGE is {name}, a tag; what is here is {digests[0]}", f"IMAGE={digests[0]}")


def identity(scene: Scene) -> Iterator[Finding]:
    """By the layers' diff-ids: ids and digests change when an image is saved and loaded."""
    keys = {role: facts.docker.image.key for role, facts in scene.nodes.items() if facts.docker.image}
    different = differing(keys) if scene.docker else ""
    if different:
        yield IMAGE_DIFFERS.at(CLUSTER, f"{scene.effective.settings.image} is not the same everywhere: {different}", "invoke ship")


def containers(facts: Facts, scene: Scene) -> Iterator[Finding]:
    own, kit = f"spark-lab-{facts.role}", scene.effective.kit.name
    for each in facts.docker.containers:
        record = each.record
        if each.name == own and record is None:
            yield FOREIGN_NAME.at(facts.role, f"container {own} ({each.image}, {each.state})", "rename or remove it: docker rm")
        elif record and each.running and record.get("kit") != kit and scene.several:
            what = f"{each.name} of kit {record.get('kit')} runs; this is kit {kit}"
            yield OTHER_KIT.at(facts.role, what, f"invoke down --kit {record.get('kit')}")
        elif record is None and each.running and (each.gpu or re.search("vllm|sglang|ollama|trt", f"{each.image} {each.name}")):
            shown = f"{each.name} ({each.image}) runs{' with the GPU' if each.gpu else ''}; this tool did not start it"
            yield FOREIGN.at(facts.role, shown, f"docker stop {each.name}, if nobody needs it")
        if record is None and each.gpu and each.restart in ("always", "unless-stopped"):
            what = f"{each.name} uses the GPU and has the restart policy {each.restart}"
            yield RESTARTS.at(facts.role, what, f"docker update --restart no {each.name}")


CHECKS: tuple[Check, ...] = (each_node(answers), each_node(image), pinned, identity, each_node(containers))
