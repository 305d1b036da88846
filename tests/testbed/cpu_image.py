"""The Dockerfile's stage `cpu`, built by a host's own dockerd from this checkout's build context, without a network.

Its base is deb:1 with pip; vLLM for CPUs is mounted into the container, as the kit `twin` does.
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


def build(host: Host) -> Image:
    """NAME on the host, with the stamp of this checkout's sources. Raises TestbedError when the build fails."""
    image.load(host, image.ensure(RECIPE, tag=BASE), BASE)
    found = stamp.sources(ROOT)
    words = ["--target", "cpu", "--build-arg", f"CPU_BASE={BASE}", "--label", f"spark-lab.stamp={stamp.stamp(found, None)}", "--tag", NAME]
    with tempfile.NamedTemporaryFile() as context:
        context.write(stamp.tar(found))
        context.flush()
        host.run("docker", "build", *words, "-", how=How(stdin=Path(context.name), timeout_s=300))
    made = images.look(host, NAME)
    assert made is not None
    return made
