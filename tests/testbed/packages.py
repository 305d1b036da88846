"""The Debian packages that the testbed needs: which commands are missing, and one call that installs them."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.testbed.shell import PATH, How, failure, run

# command that must be found -> Debian package that brings it
SSH_TOOLS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
DOCKER_TOOLS = {"dockerd": "docker.io", "runc": "runc", "containerd": "containerd"}
IMAGE_TOOLS = {"mmdebstrap": "mmdebstrap"}
# /usr/bin/python3 and its venv module: a venv made with them works inside containers that mount /usr
VENV_PACKAGES = ("python3", "python3-venv")
REGISTRY = "docker-registry"  # only the tests of `invoke pull` and REGISTRY need it
POLICY = Path("/usr/sbin/policy-rc.d")


def tools(docker: bool) -> dict[str, str]:
    """Every command that a testbed needs, with its package."""
    return SSH_TOOLS | (DOCKER_TOOLS | IMAGE_TOOLS if docker else {})


def missing(docker: bool = True) -> list[str]:
    """What keeps a testbed from running here, one phrase each; empty if nothing does."""
    if not sys.platform.startswith("linux"):
        return ["this is not Linux"]
    lacks = [f"no {tool} (package {package})" for tool, package in tools(docker).items() if not _found(tool)]
    return ([] if os.geteuid() == 0 else ["not root"]) + lacks


def _found(tool: str) -> bool:
    return shutil.which(tool, path=PATH) is not None


def install_packages(docker: bool = True, extra: Sequence[str] = (*VENV_PACKAGES, REGISTRY)) -> list[str]:
    """Install what is missing with apt-get and return the package names asked for. Root and Debian or Ubuntu only.

    `extra` packages are asked for as well (apt-get leaves installed ones alone). No service is started.
    Raises TestbedError if apt-get fails.
    """
    wanted = sorted({package for tool, package in tools(docker).items() if not _found(tool)})
    wanted += [package for package in extra if not _installed(package)]
    if not wanted:
        return []
    if os.geteuid() != 0:
        raise failure(f"install {' '.join(wanted)}", why="not root", hint="run this as root")
    hint = "apt-get update by hand, and read its first error"
    run(["apt-get", "-q", "update"], "read the package lists", How(timeout_s=300, hint=hint))
    install = ["apt-get", "-q", "install", "-y", "--no-install-recommends", *wanted]
    with _services_kept_off():
        run(install, f"install {' '.join(wanted)}", How(timeout_s=900, hint=hint))
    return wanted


def _installed(package: str) -> bool:
    return os.path.exists(f"/var/lib/dpkg/info/{package}.list")


@contextlib.contextmanager
def _services_kept_off() -> Iterator[None]:
    """Keep packages from starting a system-wide sshd or dockerd, by Debian's policy file, unless there is one."""
    try:
        with POLICY.open("x") as file:
            file.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()
