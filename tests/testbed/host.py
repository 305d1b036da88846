"""One testbed host: made of namespaces, yet a machine in all that the launcher sees (network, name, files, daemons)."""

import http.client
import json
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.shell import (
    PATH,
    PLAIN,
    How,
    Process,
    Result,
    attempt,
    children,
    failure,
    in_background,
    inner_pid,
    run,
    start_ticks,
    wait_until,
)

NETWORK = "10.77.0"
BRIDGE = "sparkbr"
BRIDGE_ADDRESS = f"{NETWORK}.254"
NEW = ("--mount", "--uts", "--ipc", "--pid")  # namespaces of a host besides its network
CGROUP = "spark-testbed"  # parent cgroup of every container
SSHD_CONFIG = """\
Port 22
ListenAddress {address}
HostKey {root}/ssh/host_key
PidFile none
AuthorizedKeysFile /root/.ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
SetEnv PATH={path}
Subsystem sftp internal-sftp
LogLevel VERBOSE
"""


@dataclass(frozen=True)
class Host:
    """Host number `index` (1..4) of the testbed in the folder `state`. What it knows of its processes is on disk."""

    index: int
    state: Path

    @property
    def name(self) -> str:
        return f"spark{self.index}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.index}"

    @property
    def netns(self) -> str:
        """Name for `ip netns exec`; also of the host, for a person who looks."""
        return f"sparkt{self.index}"

    @property
    def veth(self) -> str:
        """The bridge's end of this host's cable; the other end is the host's eth0."""
        return f"sparkv{self.index}"

    @property
    def root(self) -> Path:
        """This host's private files, as the machine sees them."""
        return self.state / self.name

    def path(self, inside: str) -> Path:
        """Where the machine sees a file that lies under the host's /root, /tmp, /run or /etc/docker."""
        for mount, below in (("/root", "home"), ("/tmp", "tmp"), ("/run", "run"), ("/etc/docker", "etc/docker")):
            if inside == mount or inside.startswith(mount + "/"):
                return self.root / below / inside[len(mount) :].lstrip("/")
        raise ValueError(f"{inside} is not private to a host")

    # --- processes ---

    def record(self, what: str) -> Path:
        return self.root / "pids" / f"{what}.json"

    def process(self, what: str) -> Process | None:
        """The recorded process `init`, `sshd` or `dockerd`, alive or not; None if it was never started, or stopped."""
        return Process.load(self.record(what))

    def alive(self, what: str) -> bool:
        process = self.process(what)
        return process is not None and process.alive()

    def _enter(self) -> list[str]:
        init = self.process("init")
        if init is None or not init.alive():
            raise failure(f"reach {self.name}", why="it is not up", hint="python -m tests.testbed.hosts up")
        return ["nsenter", f"--target={init.pid}", "--net", *NEW, "--"]

    def attempt(self, *argv: str, how: How = PLAIN) -> Result:
        """Run a command as root on the host, without ssh, in a plain environment; any status is returned."""
        return attempt([*self._enter(), *argv], how)

    def run(self, *argv: str, how: How = PLAIN) -> str:
        """The same, returning stdout; TestbedError on a status other than 0."""
        return run([*self._enter(), *argv], f"run {argv[0]} on {self.name}", how)

    def _daemon(self, what: str, argv: Sequence[str]) -> Process:
        """Start `argv` on the host as the child of its process 1, which reaps it; the record holds its pid outside.

        A process whose parent is outside would keep the PID namespace from ending until that parent reaps it.
        """
        log = self.root / f"log/{what}.log"
        self.stop(what)
        init = self.process("init")
        inner = int(self.run(*in_background(log, argv)))
        outer = [pid for pid in children(init.pid) if inner_pid(pid) == inner] if init else []
        process = Process.of(outer[0]) if outer else None
        if process is None:
            text = log.read_text(errors="replace")
            raise failure(f"start {what} of {self.name}", ran=argv, why="it ended at once", output=text)
        process.save(self.record(what))
        return process

    def stop(self, what: str, grace_s: float = 0.0) -> None:
        """Stop `sshd` or `dockerd` (or `init`, and with it all that runs on the host) and forget it.

        SIGKILL at once without a grace time. Raises TestbedError if it will not end.
        """
        process = self.process(what)
        if process is not None and not process.stop(grace_s):
            raise failure(
                f"stop {what} of {self.name}",
                why=f"pid {process.pid} ignores SIGKILL",
                hint=f"cat /proc/{process.pid}/stack",
            )
        self.record(what).unlink(missing_ok=True)

    # --- making ---

    def make_files(self, public_key: str, hosts_file: str, registry: str) -> None:
        """Lay out the private folders, a new host key, and the configuration of sshd and dockerd."""
        for below in ("home/.ssh", "tmp", "run/sshd", "docker", "etc/docker", "cgroup", "ssh", "pids", "log"):
            (self.root / below).mkdir(parents=True, exist_ok=True)
        (self.root / "home/.ssh").chmod(0o700)
        (self.root / "tmp").chmod(0o1777)
        (self.root / "etc/hosts").write_text(hosts_file)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        (self.root / "etc/docker/daemon.json").write_text(json.dumps(self._docker_config(registry), indent=1))
        (self.root / "home/.ssh/authorized_keys").write_text(public_key)
        (self.root / "ssh/sshd_config").write_text(SSHD_CONFIG.format(address=self.address, root=self.root, path=PATH))
        make_key(self.root / "ssh/host_key", self.name)

    def _docker_config(self, registry: str) -> dict[str, object]:
        """No bridge and no packet filter: every container uses the host's network, as on a Spark."""
        return {
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/{CGROUP}/{self.name}",
            "insecure-registries": [registry],
            "runtimes": {"clipped": {"path": str(self.state / "bin/runc-clipped")}},
            "default-runtime": "clipped",
        }

    def plug_in(self) -> None:
        """Make the host's network namespace, and a cable from its eth0 to the bridge. A host that comes again has the same MAC address: its
        neighbours would ask the old one for 8 s otherwise."""
        mac = "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))
        ip("netns", "add", self.netns)
        ip("link", "add", self.veth, "type", "veth", "peer", "name", "eth0", "netns", self.netns)
        ip("link", "set", self.veth, "master", BRIDGE, "up")
        ip("-n", self.netns, "link", "set", "eth0", "address", mac)
        ip("-n", self.netns, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.netns, "link", "set", "eth0", "up")
        ip("-n", self.netns, "link", "set", "lo", "up")

    def start_init(self, shm: str, mounts: Sequence[str]) -> None:
        """Make the other namespaces; returns when the host's files are in place."""
        spec = json.dumps({"root": str(self.root), "name": self.name, "shm": shm, "mounts": list(mounts)})
        enter = ["nsenter", f"--net=/run/netns/{self.netns}", "--", "unshare", *NEW, "--fork", "--propagation=private"]
        argv = [*enter, "--", sys.executable, "-I", str(self.state / "bin/host_init.py"), spec]
        log = self.root / "log/init.log"
        waits = int(run(in_background(log, argv), f"start {self.name}"))  # unshare; its one child will be process 1
        wait_until(lambda: bool(children(waits)) or start_ticks(waits) is None, 10)
        process = Process.of(children(waits)[0]) if children(waits) else None
        if process is not None:
            process.save(self.record("init"))
            wait_until(lambda: _ready(log) or not process.alive(), 20)
        if not _ready(log):
            raise failure(f"lay out the files of {self.name}", ran=argv, output=log.read_text(errors="replace"))

    def start_sshd(self) -> None:
        """Start (again, if it runs) the host's sshd; returns when it listens."""
        process = self._daemon("sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.root / "ssh/sshd_config")])
        self._expect("sshd", lambda: _listens(process.pid, 22), 10)

    def start_dockerd(self) -> None:
        """Start (again, if it runs) the host's dockerd; returns when it answers."""
        self.path("/run/docker.pid").unlink(missing_ok=True)
        search = f"PATH={self.state / 'bin'}:{PATH}"  # the stub of the GPU hook is found here
        self._daemon("dockerd", ["env", search, "dockerd"])
        self._expect("dockerd", self.docker_answers, 60)

    def _expect(self, what: str, ready: Callable[[], bool], timeout_s: float) -> None:
        wait_until(lambda: ready() or not self.alive(what), timeout_s)
        if ready():
            return
        why = f"no answer within {timeout_s:g} s" if self.alive(what) else "it ended"
        log = self.root / f"log/{what}.log"
        raise failure(f"start {what} of {self.name}", why=why, output=log.read_text(errors="replace"), hint=f"less {log}")

    def docker_answers(self) -> bool:
        """Ask the daemon's socket, not the client: a few milliseconds."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(2)
                link.connect(str(self.path("/run/docker.sock")))
                link.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                answer = http.client.HTTPResponse(link)
                answer.begin()
                return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False


def ip(*words: str) -> str:
    """iproute2's `ip` in the machine's own network namespace."""
    return run(["ip", *words], f"set up the network (ip {' '.join(words[:2])})", How(hint="python -m tests.testbed.hosts down"))


def make_key(path: Path, comment: str) -> None:
    """A new ed25519 key pair at `path` and `path`.pub; one that was there is replaced."""
    path.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], f"make the ssh key {path}")


def public_key(path: Path) -> str:
    """`TYPE BASE64` of the pair whose private half is at `path`, without the comment."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def _ready(log: Path) -> bool:
    """Whether process 1 has said that all is laid out."""
    return log.exists() and log.read_text(errors="replace").endswith("ready\n")


def _listens(pid: int, port: int) -> bool:
    """Whether anything listens on this TCP port in the network namespace of a process, whatever its links do."""
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    listening = "0A"
    return any(line.split()[3] == listening and line.split()[1].endswith(f":{port:04X}") for line in lines)
