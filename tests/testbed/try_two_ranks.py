"""Proof that the testbed carries the real thing: vLLM, TP=2 over two hosts, a container each, production docker flags.

    python -m tests.testbed.try_two_ranks

Everything it needs is made first (packages, vLLM, model, image, hosts): some minutes the first time, then about two.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.testbed import image, model, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.packages import install_packages
from tests.testbed.shell import TestbedError, failure, wait_until

API_PORT = 18888
MASTER_PORT = 29555
NAME = "vllm-rank"  # of the container on every host
HEALTHY_WITHIN_S = 300.0
# What a Spark's launcher passes. The testbed's runc clips what this machine may not give; the GPU is a stub.
DOCKER_FLAGS = (
    "--privileged",
    "--gpus",
    "all",
    "--network",
    "host",
    "--ipc",
    "host",
    "--ulimit",
    "memlock=-1",
    "--shm-size",
    "1g",
)


@dataclass(frozen=True)
class Job:
    """One vLLM served by several hosts: rank i runs on hosts[i], rank 0 has the API."""

    hosts: Sequence[Host]
    vllm: vllm_env.VllmEnv
    model: Path

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0].address}:{API_PORT}"

    def docker_run(self, rank: int) -> list[str]:
        """The whole command line of a rank. The environment and the userland are mounted into the small image."""
        env = {
            **vllm_env.CPU_ENV,
            "HOME": "/tmp",
            "GLOO_SOCKET_IFNAME": "eth0",
            "VLLM_HOST_IP": self.hosts[rank].address,
            "VLLM_CPU_OMP_THREADS_BIND": str(rank % (os.cpu_count() or 1)),
        }
        volumes = [f"{path}:{path}:ro" for path in (self.vllm.folder, Path("/usr"), self.model)]
        words = ["docker", "run", "--detach", "--name", NAME, "--pull=never", *DOCKER_FLAGS]
        words += [word for volume in volumes for word in ("--volume", volume)]
        words += [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
        return [*words, "--entrypoint", str(self.vllm.vllm), image.TAG, *self.serve(rank)]

    def serve(self, rank: int) -> list[str]:
        """vLLM's own arguments of a rank. Eager float32: no compiler and no AMX."""
        size = len(self.hosts)
        role = ["--headless"] if rank else ["--host", "0.0.0.0", "--port", str(API_PORT)]
        return [
            *("serve", str(self.model), "--served-model-name", "tiny"),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "256"),
            *("--tensor-parallel-size", str(size), "--nnodes", str(size), "--node-rank", str(rank)),
            *("--master-addr", self.hosts[0].address, "--master-port", str(MASTER_PORT)),
            *("--distributed-executor-backend", "mp", *role),
        ]

    def start(self) -> None:
        """Headless ranks first, rank 0 last, as the launcher does."""
        for rank in reversed(range(len(self.hosts))):
            self.hosts[rank].run(*self.docker_run(rank))

    def logs(self) -> str:
        results = [(host, host.attempt("docker", "logs", "--tail", "15", NAME)) for host in self.hosts]
        return "\n".join(f"--- {host.name}\n{result.stdout}{result.stderr}" for host, result in results)

    def exited(self) -> list[str]:
        """Hosts on which the container does not run (any more)."""
        states = {h.name: h.attempt("docker", "inspect", "--format", "{{.State.Running}}", NAME).stdout.strip() for h in self.hosts}
        return [name for name, state in states.items() if state != "true"]

    def wait_healthy(self, timeout_s: float = HEALTHY_WITHIN_S) -> None:
        wait_until(lambda: self.healthy() or bool(self.exited()), timeout_s, every_s=1.0)
        if not self.healthy():
            gone = self.exited()
            why = f"the container on {' and '.join(gone)} ended" if gone else f"no /health within {timeout_s:g} s"
            raise failure(f"serve on {len(self.hosts)} hosts", ran=self.docker_run(0), why=why, output=self.logs())

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def chat(self, text: str, tokens: int = 16) -> dict[str, object]:
        """One greedy chat completion of exactly `tokens` tokens; the whole answer."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            content: dict[str, object] = json.load(answer)
            return content

    def stop(self) -> None:
        """SIGTERM to rank 0 first: the API goes away before the ranks it needs. Then remove the containers.

        A headless rank takes 11.5 to 12.7 s to end, longer than the 10 s that docker gives by default.
        """
        for host in self.hosts:
            host.attempt("docker", "stop", "--time", "20", NAME)
            host.run("docker", "rm", "--force", NAME)

    def remains(self) -> list[str]:
        """What of the job still runs on the hosts: containers, processes."""
        found = []
        for host in self.hosts:
            found += [f"{host.name} container {name}" for name in host.run("docker", "ps", "-aq").split()]
            found += [f"{host.name} process {line}" for line in host.run("ps", "-eo", "args=").splitlines() if "vllm" in line.lower()]
        return found

    def sweep_shared_memory(self) -> list[str]:
        """Remove what the ranks left in the hosts' /dev/shm, and name it.

        With `--ipc host` it outlives the container: so at every stop of vLLM 0.32, in whatever order, also with exit
        status 0 (a semaphore on every host, whose worker has to be killed, and two segments on rank 0's).
        """
        found = [(host, name) for host in self.hosts for name in host.run("ls", "/dev/shm").split()]
        for host, name in found:
            host.run("rm", f"/dev/shm/{name}")
        return [f"{host.name}:/dev/shm/{name}" for host, name in found]


@contextmanager
def timed(what: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    print(f"{time.monotonic() - begin:7.1f} s  {what}", flush=True)


def prove(bed: Testbed, env: vllm_env.VllmEnv, folder: Path) -> None:
    """Serve, ask once, stop, look for remains. Raises TestbedError at the first thing that is not as it should be."""
    job = Job(bed.hosts, env, folder)
    try:
        with timed("first docker run to /health 200"):
            job.start()
            job.wait_healthy()
        for nth in ("first", "second"):
            with timed(f"{nth} chat completion, 16 tokens"):
                answer = job.chat("Hello")
        print(json.dumps(answer, ensure_ascii=False))
    finally:
        with timed("stop and remove the containers"):
            job.stop()
    remains = job.remains()
    if remains:
        raise failure("stop vLLM on both hosts", why="something is left", output="\n".join(remains))
    print("left in shared memory by vLLM, removed:", *job.sweep_shared_memory())


def main() -> int:
    try:
        with timed("packages"):
            install_packages()
        with timed("vLLM environment"):
            env = vllm_env.ensure()
        with timed("model"):
            folder = model.make()
        with timed("image archive"):
            archive = image.ensure()
        with timed("all, hosts up to hosts down"), Testbed(hosts=2) as bed:
            with timed("image on both hosts"):
                for host in bed.hosts:
                    image.load(host, archive)
            prove(bed, env, folder)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    print("nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
