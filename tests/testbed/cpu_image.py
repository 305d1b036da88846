"""The Dockerfile's stage `cpu`, built by a host's own dockerd from this checkout's build context, without any index of packages.

Its base is deb:1 with pip. `build`: the plugin alone; vLLM for CPUs is mounted into the container, as the kit `twin` does.
`build_with_vllm`: vLLM itself in the image, from a folder of wheels (1.1 GB of them; 3.6 GB of image).
"""

import dataclasses
import tempfile
from pathlib import Path

from cluster.images import stamp
from cluster.images.identity import Image
from tests.testbed import image, images
from tests.testbed.host import Host
from tests.testbed.shell import How

ROOT = Path(__file__).resolve().parents[2]
BASE, NAME = "deb-pip:1", "spark-lab/cpu:test"
RECIPE = dataclasses.replace(image.RECIPE, packages=(*image.RECIPE.packages, "python3-pip", "python3-setuptools", "python3-wheel"))
WHOLE_BASE, WHOLE_NAME = "deb-pip-numa:1", "spark-lab/cpu-vllm:test"
WHOLE_RECIPE = dataclasses.replace(RECIPE, packages=(*RECIPE.packages, "libnuma1", "zlib1g", "util-linux"))
# what vLLM's and numpy's libraries link to, and lscpu, which vLLM calls


def build(host: Host) -> Image:
    """NAME on the host, with the stamp of this checkout's sources. Raises TestbedError when the build fails."""
    image.load(host, image.ensure(RECIPE, tag=BASE), BASE)
    return _built(host, NAME, BASE)


def build_with_vllm(host: Host, wheels: str) -> Image:
    """WHOLE_NAME on the host; `wheels`: the address of the folder, as the host reaches it."""
    image.load(host, image.ensure(WHOLE_RECIPE, tag=WHOLE_BASE), WHOLE_BASE)
    trusted = wheels.split("//")[1].split(":")[0]
    args = {"VLLM": "1", "PIP_FIND_LINKS": wheels, "PIP_NO_INDEX": "1", "PIP_TRUSTED_HOST": trusted}
    return _built(host, WHOLE_NAME, WHOLE_BASE, "--network", "host", *(f"--build-arg={name}={value}" for name, value in args.items()))


def _built(host: Host, name: str, base: str, *more: str) -> Image:
    found = stamp.sources(ROOT)
    words = ["--target", "cpu", "--build-arg", f"CPU_BASE={base}", "--label", f"spark-lab.stamp={stamp.stamp(found, None)}", "--tag", name]
    with tempfile.NamedTemporaryFile() as context:
        context.write(stamp.tar(found))
        context.flush()
        host.run("docker", "build", *words, *more, "-", how=How(stdin=Path(context.name), timeout_s=1200))
    made = images.look(host, name)
    assert made is not None
    return made
