"""Make 1 to 4 hosts on this machine, or take them away again. Root, Linux; nothing outside 10.77.0.0/24 is touched.

python -m tests.testbed.hosts install                  # the Debian packages it needs
python -m tests.testbed.hosts up --hosts 2 [--no-docker] [--mount PATH]...
python -m tests.testbed.hosts status
ssh -F /var/lib/spark-testbed/ssh_config spark1 hostname
python -m tests.testbed.hosts down

with Testbed(hosts=2) as bed: bed.hosts[0].run("hostname")
    with bed.widened(3) as wide: wide.hosts[2].run("hostname")
"""

import argparse
import contextlib
import fcntl
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.testbed import leftovers
from tests.testbed.host import BRIDGE, BRIDGE_ADDRESS, NETWORK, Host, ip, make_key, public_key
from tests.testbed.layout import Layout, hosts_file, ssh_config
from tests.testbed.packages import install_packages, missing
from tests.testbed.shell import How, Result, TestbedError, attempt, failure

STATE = Path("/var/lib/spark-testbed")
HIDDEN = ("/tmp", "/root", "/run", "/var/run")  # every host has its own: no place for the state
DOWN = "python -m tests.testbed.hosts down"
HERE = Path(__file__).parent


class Testbed:
    """The testbed whose files lie in `state`. As a context manager it goes down at the end, unless it was up before."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, hosts: int = 2, docker: bool = True, mounts: Sequence[str | Path] = (), state: Path = STATE) -> None:
        self.layout = Layout(hosts, docker, tuple(str(path) for path in mounts))
        self.state = state.absolute()
        self._began_it = False

    @classmethod
    def found(cls, state: Path = STATE) -> "Testbed | None":
        """The testbed recorded in `state`, whole or in pieces; None if there is none."""
        layout = Layout.recorded(state)
        return None if layout is None else cls(layout.hosts, layout.docker, layout.mounts, state)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(Host(index, self.state) for index in range(1, self.layout.hosts + 1))

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F` and for fabric; it names `identity` and `known_hosts`, and refuses a key that is not known."""
        return self.state / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def identity(self) -> Path:
        return self.state / "id"

    def ssh(self, host: Host, *words: str, timeout_s: float = 30.0) -> Result:
        """Run a command line through a real ssh client; status 255 means that ssh itself failed."""
        return attempt(["ssh", "-F", str(self.ssh_config), host.name, *words], How(timeout_s=timeout_s))

    def __enter__(self) -> "Testbed":
        self._began_it = self.up()
        return self

    def __exit__(self, *_: object) -> None:
        if self._began_it:
            self.down()

    def up(self) -> bool:
        """Make the hosts; True if that was needed, False if this very testbed is up and whole.

        Remains of one that died are cleared first. Raises TestbedError if another layout is up, or if a step fails;
        what was made until then is taken down.
        """
        self.layout.check()
        self._check_machine()
        with self._lock():
            if self._is_up():
                return False
            self._take_down()
            self._check_free()
            try:
                self._make()
            except BaseException:
                self._take_down()
                raise
            return True

    def down(self) -> list[str]:
        """Stop what was started, remove what was made, and return one line for each; none if nothing was up.

        The logs of the last run stay in `state`/logs. Raises TestbedError, naming it, if anything is left.
        """
        with self._lock():
            return self._take_down()

    @contextlib.contextmanager
    def widened(self, hosts: int) -> Iterator["Testbed"]:
        """This testbed, which is up, with further hosts until the `with` block ends. Those that are up go on as they are.

        While it is wider it is another layout to `up`; what an interruption leaves, `down` takes away with the rest.
        """
        wide = Testbed(hosts, self.layout.docker, self.layout.mounts, self.state)
        wide.layout.check()
        more = wide.hosts[self.layout.hosts :]
        try:
            with self._lock():
                wide.layout.record(self.state)
                wide._begin(more)
            yield wide
        finally:
            with self._lock():
                for host in more:
                    leftovers.drop(host)
                self.layout.record(self.state)
                self._write_names()

    def status(self) -> list[str]:
        """One line per host."""
        if Layout.recorded(self.state) is None:
            return ["down"]
        wanted = ("init", "sshd", "dockerd") if self.layout.docker else ("init", "sshd")
        return [f"{h.name} {h.address} " + " ".join(f"{w}:{'up' if h.alive(w) else 'DOWN'}" for w in wanted) for h in self.hosts]

    # --- steps ---

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` at a time on this state folder; a second one waits."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _check_machine(self) -> None:
        lacks = missing(self.layout.docker)
        if lacks:
            raise failure("make a testbed", why="; ".join(lacks), hint="as root: python -m tests.testbed.hosts install")
        if any(self.state.is_relative_to(path) for path in HIDDEN):
            raise failure(
                "make a testbed",
                why=f"--state {self.state} is hidden in the hosts",
                hint="a folder outside " + " ".join(HIDDEN),
            )

    def _is_up(self) -> bool:
        """Whether this layout is up and whole. Another layout of which any host lives is an error."""
        there = Layout.recorded(self.state)
        if there is None:
            return False
        whole = not any("DOWN" in line for line in self.status())
        lives = any(Host(index, self.state).alive("init") for index in range(1, there.hosts + 1))
        if there != self.layout and lives:
            raise failure(
                "make a testbed",
                why=f"another one is up: {there}, wanted {self.layout}",
                hint=f"{DOWN} --state {self.state}",
            )
        return there == self.layout and whole

    def _check_free(self) -> None:
        """The names of the network devices are fixed, so there is one testbed to a machine."""
        there = leftovers.devices()
        if there:
            hint = f"{DOWN} with its own --state; if that folder is lost: " + "; ".join(leftovers.by_hand(there))
            raise failure("make a testbed", why=f"not ours, but there: {', '.join(there)}", hint=hint)

    def _make(self) -> None:
        self.layout.record(self.state)  # before anything is made, so that `down` finds an `up` that was cut short
        shutil.copytree(HERE / "bin", self.state / "bin", dirs_exist_ok=True)
        shutil.copy(HERE / "host_init.py", self.state / "bin")
        make_key(self.identity, "spark-testbed")
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{BRIDGE_ADDRESS}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        self._begin(self.hosts)

    def _begin(self, begun: Sequence[Host]) -> None:
        """Make and start these hosts; all others of the layout are up and get to know them."""
        for host in begun:
            host.make_files(public_key(self.identity) + "\n", hosts_file(self.hosts), f"{BRIDGE_ADDRESS}:5000")
        self._write_names()
        for host in begun:
            host.plug_in()
            host.start_init(self.layout.shm, self.layout.mounts)
            host.start_sshd()
        for host in begun if self.layout.docker else ():
            host.start_dockerd()

    def _write_names(self) -> None:
        """The same names, key, known hosts and ssh configuration for the person outside and for root on every host."""
        keys = [f"{host.name},{host.address} {public_key(host.root / 'ssh/host_key')}" for host in self.hosts]
        self.known_hosts.write_text("\n".join(keys) + "\n")
        self.ssh_config.write_text(ssh_config(self.hosts, self.identity, self.known_hosts))
        for host in self.hosts:
            (host.root / "etc/hosts").write_text(hosts_file(self.hosts))  # the very file that is mounted in the host
            shutil.copy(self.identity, host.path("/root/.ssh/id_ed25519"))
            shutil.copy(self.known_hosts, host.path("/root/.ssh/known_hosts"))
            inside = ssh_config(self.hosts, Path("/root/.ssh/id_ed25519"), Path("/root/.ssh/known_hosts"))
            host.path("/root/.ssh/config").write_text(inside)

    def _take_down(self) -> list[str]:
        there = Layout.recorded(self.state)
        if there is None:
            return []
        hosts = [Host(index, self.state) for index in range(1, there.hosts + 1)]
        removed = leftovers.remove(hosts)
        leftovers.check(self.state, hosts)
        leftovers.keep_logs(self.state, hosts)
        for host in hosts:
            shutil.rmtree(host.root)
        for name in ("state.json", "ssh_config", "known_hosts", "id", "id.pub"):
            (self.state / name).unlink(missing_ok=True)
        shutil.rmtree(self.state / "bin", ignore_errors=True)
        return removed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.hosts", description="Two to four hosts on one machine.")
    parser.add_argument("do", choices=("install", "up", "status", "down"))
    parser.add_argument("--hosts", type=int, default=2, help="how many, 1 to 4 (default 2)")
    parser.add_argument("--no-docker", dest="docker", action="store_false", help="no dockerd on the hosts")
    parser.add_argument("--mount", action="append", default=[], metavar="PATH", help="keep PATH visible in the hosts; repeatable")
    parser.add_argument("--state", type=Path, default=STATE, help=f"state folder (default {STATE})")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(words)
    bed = Testbed(args.hosts, args.docker, args.mount, args.state)
    there = Testbed.found(args.state)
    try:
        lines = _do(args.do, bed, there)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def _do(what: str, bed: Testbed, there: Testbed | None) -> list[str]:
    if what == "install":
        done = install_packages(bed.layout.docker)
        return [f"installed: {' '.join(done)}" if done else "everything is installed"]
    if what == "up":
        news = "up" if bed.up() else "already up"
        return [news, *bed.status(), f"ssh -F {bed.ssh_config} {bed.hosts[0].name} hostname"]
    if what == "down":
        return [*bed.down(), f"down: nothing left ({NETWORK}.0/24)"]
    return (there or bed).status()


if __name__ == "__main__":
    sys.exit(main())
