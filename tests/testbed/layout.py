"""What a testbed is made of, and the texts that follow from it: /etc/hosts and the ssh configuration."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.testbed.host import Host
from tests.testbed.shell import failure

SSH_HOST = """\
Host {name} {address}
  HostName {address}
  Port 22
  User root
  IdentityFile {identity}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  LogLevel ERROR
"""


@dataclass(frozen=True)
class Layout:
    """What a testbed is made of.

    `mounts` must exist: paths under /tmp, /root or /run, which the hosts would else not see. A path elsewhere needs no
    mention, but a file system that is to be seen must be mounted before the hosts are made. `shm`: size of /dev/shm.
    """

    hosts: int = 2
    docker: bool = True
    mounts: tuple[str, ...] = ()
    shm: str = "4g"

    def check(self) -> None:
        if not 1 <= self.hosts <= 4:
            raise failure("lay out the testbed", why=f"{self.hosts} hosts asked for", hint="--hosts 1, 2, 3 or 4")
        for path in self.mounts:
            if not (path.startswith("/") and os.path.exists(path)):
                raise failure("lay out the testbed", why=f"--mount {path}: no such absolute path", hint="make it before the hosts")

    def record(self, state: Path) -> None:
        """Write it down in the state folder."""
        (state / "state.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def recorded(cls, state: Path) -> "Layout | None":
        """What `record` wrote there; None if nothing is up, not even in pieces."""
        try:
            known = json.loads((state / "state.json").read_text())
        except FileNotFoundError:
            return None
        return cls(known["hosts"], known["docker"], tuple(known["mounts"]), known["shm"])


def hosts_file(hosts: Sequence[Host]) -> str:
    """/etc/hosts of every host: all names on all hosts, which vLLM's ranks look up."""
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
    return "\n".join(lines) + "\n"


def ssh_config(hosts: Sequence[Host], identity: Path, known_hosts: Path) -> str:
    """An ssh client configuration: every host goes by its name or its address, and only known keys are taken."""
    fill = {"identity": identity, "known_hosts": known_hosts}
    return "\n".join(SSH_HOST.format(name=host.name, address=host.address, **fill) for host in hosts)
