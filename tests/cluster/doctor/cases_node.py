"""Cases: GPU, system, docker, storage."""

from __future__ import annotations

import json
import time

from tests.cluster.doctor.changes import (
    HALF,
    LOCK,
    OLD,
    OTHER,
    SWAP,
    Case,
    both,
    put,
)
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import GIB, ran

GPU = (
    Case("gpu-none", "head", put("head", "runs", "gpu", None), ("no GPU", "dmesg")),
    Case(
        "gpu-other",
        "head",
        put("head", "runs", "gpu", ran(recorded.GPU.replace("NVIDIA GB10", "NVIDIA H200"))),
        ("NVIDIA H200; expected a GB10",),
    ),
    Case("gpu-busy", "head", lambda p: p.app("98304 MiB", user="eve"), ("pid 4242 (python3, user eve)", "96.0 GiB", "did not start")),
    Case("gpu-shared", "head", lambda p: p.app("300 MiB", user="eve"), ("0.3 GiB",)),
    Case(
        "gpu-slow",
        "head",
        both(
            lambda p: p.gpu(clock="513 MHz", use=" 96 %", power="60 W"),
            lambda p: p.gpu("worker", clock="2400 MHz", use=" 95 %", power="70 W"),
        ),
        ("SM clock 513 MHz", "2400", "unplug"),
    ),
    Case("gpu-cap", "cluster", lambda p: p.gpu(highest="2000 MHz"), ("head 2000, worker 3003", "reset-gpu-clocks")),
    Case(
        "gpu-throttled", "head", put("head", "runs", "gpu-reasons", ran("clocks_event_reasons.active\n0x40\n")), ("hardware thermal limit",)
    ),
    Case("gpu-spin", "head", lambda p: p.gpu(use=" 96 %", power="20.1 W", clock="2400 MHz"), ("96% use at 20.1 W", "invoke status")),
    Case("gpu-hot", "head", lambda p: p.gpu(temperature=" 91,"), ("91 C; expected below 85",)),
    Case(
        "driver-mismatch",
        "cluster",
        put("head", "runs", "gpu", ran(recorded.GPU.replace("580.173.02", "580.95.05"))),
        ("head 580.95.05, worker 580.173.02",),
    ),
    Case(
        "kernel-mismatch",
        "cluster",
        put("head", "files", "/proc/sys/kernel/osrelease", "6.11.0-1016-nvidia"),
        ("head 6.11.0-1016-nvidia, worker 6.17",),
    ),
    Case("page-size-mismatch", "cluster", put("head", "node", "page_bytes", 65536), ("head 65536, worker 4096",)),
    Case(
        "known-bad-version",
        "head",
        put("head", "files", "/proc/sys/kernel/osrelease", "7.0.0-31-generic"),
        ("kernel 7.0.0-31-generic", "ENOMEM", "issue 259", "7.0.0-30"),
    ),
)

AVAILABLE = "MemAvailable:   100000000 kB\nWas:"
SYSTEM = (
    Case("memory", "head", lambda p: None, ("112.5 of 121.7 GiB available, free 19.1, page cache 91.6", "invoke budget")),
    Case(
        "memory-short",
        "head",
        lambda p: p.files().update({"/proc/meminfo": p.files()["/proc/meminfo"].replace("MemAvailable:", AVAILABLE)}),
        ("the launch needs 105.4 GiB, 95.4 GiB are available", "GPU_MEM_UTIL=0.76"),
    ),
    Case("swap-used", "head", put("head", "files", "/proc/meminfo", SWAP), ("4.0 GiB of swap", "swapoff")),
    Case("oom-killed", "head", put("head", "files", "/proc/vmstat", "oom_kill 3"), ("3 since the boot",)),
    Case("earlyoom", "head", put("head", "runs", "earlyoom", ran("active\n")), ("earlyoom is active",)),
    Case("desktop-running", "head", lambda p: p.process(kind="desktop", name="gnome-shell"), ("gnome-shell runs", "multi-user.target")),
    Case("linger", "head", lambda p: p.image(user="1000:1000"), ("Linger is off for spark, RemoveIPC is on", "enable-linger spark")),
    Case(
        "node-restarted",
        "head",
        lambda p: p.containers({"name": "/spark-lab-head", "record": OLD, "state": "exited"}),
        ("boot b0 was started before",),
    ),
    Case("zombies", "head", lambda p: p.head["node"]["processes"].update(zombies=40), ("40 zombies",)),
    Case("foreign-engine", "head", lambda p: p.process(name="llama-server"), ("pid 4242 (llama-server, user eve)", "did not start")),
    Case(
        "port-held",
        "head",
        put("head", "node", "ports", {"8888": {"pid": 7, "sid": 7, "user": "eve"}}),
        ("PORT 8888 is held by pid 7 of eve",),
    ),
    Case(
        "launch-lock",
        "head",
        put("head", "node", "lock", json.dumps({"owner": "eve (pid 7)", "until_unix_s": time.time() + 3600})),
        ("held by eve (pid 7)",),
    ),
)

INFO = recorded.INFO
DOCKER = (
    Case("docker-missing", "head", lambda p: p.head["runs"].pop("docker-info"), ("no docker on the PATH",)),
    Case(
        "docker-silent",
        "head",
        put("head", "runs", "docker-info", ran("", 1, "Cannot connect to the Docker daemon")),
        ("Cannot connect", "systemctl start docker"),
    ),
    Case(
        "docker-permission",
        "head",
        put("head", "runs", "docker-info", ran("", 1, "permission denied while trying to connect")),
        ("spark (groups spark, docker)", "usermod -aG docker spark"),
    ),
    Case(
        "docker-rootless",
        "head",
        put("head", "runs", "docker-info", ran(json.dumps({**INFO, "SecurityOptions": ["name=rootless"]}))),
        ("rootless", "enable-linger"),
    ),
    Case(
        "docker-no-gpu",
        "head",
        put("head", "runs", "docker-info", ran(json.dumps({**INFO, "Runtimes": {"runc": {}}}))),
        ("runtimes are runc", "nvidia-ctk"),
    ),
    Case("image-missing", "head", put("head", "runs", "image", ran("[]", 1, "No such image")), ("no image spark-lab/glm-exl3:0.32",)),
    Case(
        "image-differs", "cluster", lambda p: p.image(layers=["sha256:" + "c3" * 32]), ("head ", "worker 99f244ced4b43fc0", "invoke ship")
    ),
    Case("image-architecture", "head", lambda p: p.image(arch="amd64"), ("for amd64; expected arm64",)),
    Case(
        "image-layers",
        "head",
        both(*(lambda p, role=role: p.image(role, layers=[f"sha256:{n}" for n in range(128)]) for role in ("head", "worker"))),
        ("128 layers",),
    ),
    Case("image-baked-variables", "head", lambda p: p.image(env=["NCCL_SOCKET_IFNAME=eth9", "PATH=/"]), ("NCCL_SOCKET_IFNAME=eth9",)),
    Case(
        "image-not-pinned",
        "cluster",
        lambda p: p.image(digests=["r/i@sha256:99"]),
        ("a tag; what is here is r/i@sha256:99", "IMAGE=r/i@sha256:99"),
    ),
    Case(
        "container-name",
        "head",
        lambda p: p.containers({"name": "/spark-lab-head"}),
        ("container spark-lab-head (other:1, running)", "docker rm"),
    ),
    Case(
        "container-foreign",
        "head",
        lambda p: p.containers({"gpu": [{"Count": -1}]}),
        ("other (other:1) runs with the GPU", "docker stop other"),
    ),
    Case(
        "container-other-kit",
        "head",
        lambda p: p.containers({"name": "/spark-lab-head", "record": OTHER}),
        ("of kit spark3 runs; this is kit spark2", "invoke down --kit spark3"),
    ),
    Case(
        "container-restarts",
        "head",
        lambda p: p.containers({"gpu": [{"Count": -1}], "restart": "unless-stopped"}),
        ("restart policy unless-stopped",),
    ),
)

STORAGE = (
    Case(
        "disk-cache",
        "head",
        lambda p: p.folder("cache_root", free_bytes=GIB // 2),
        ("512 MiB are free", "1 GiB are needed", "HEAD_CACHE_ROOT"),
    ),
    Case("disk-state", "head", lambda p: p.folder("state", free_bytes=1 << 20), ("1 MiB are free",)),
    Case(
        "disk-weights",
        "head",
        both(lambda p: p.model(missing=["model-2.safetensors"]), lambda p: p.folder("hf_home", free_bytes=50 * GIB)),
        ("50 GiB are free", "180 GiB", "HEAD_HF_HOME"),
    ),
    Case(
        "disk-image",
        "head",
        both(lambda p: p.head["runs"].update(image=ran("[]", 1)), lambda p: p.folder("docker", free_bytes=9 * GIB)),
        ("9 GiB are free", "data-root"),
    ),
    Case(
        "folder-unwritable",
        "head",
        lambda p: p.folder("hf_home", writable=False, owner=0),
        ("belongs to uid 0, we are 1000", "chown -R spark /home/spark"),
    ),
    Case("folder-owner", "head", lambda p: p.folder("hf_home", owner=0), ("~/.cache/huggingface belongs to uid 0", "chown")),
    Case("cache-shared", "head", lambda p: p.folder("cache_root", type="nfs4"), ("are on nfs4", "HEAD_CACHE_ROOT=")),
    Case("weights-shared", "head", lambda p: p.folder("hf_home", type="nfs4"), ("is on nfs4", "nconnect")),
    Case("weights-missing", "head", lambda p: p.model(exists=False), ("the model's folder", "is not there", "invoke download")),
    Case(
        "weights-incomplete",
        "head",
        lambda p: p.model(missing=["a", "b", "c", "d"]),
        ("4 files are missing", "a, b, c and 1 more", "invoke verify"),
    ),
    Case(
        "hub-lock-stale",
        "head",
        put("head", "node", "hub_rests", [HALF, LOCK]),
        ("1 lock files that no process holds, such as /h/hub/.locks/models--m/ab.lock",),
    ),
    Case("hub-incomplete", "head", put("head", "node", "hub_rests", [HALF]), ("1 unfinished files, 2 GiB", "120 min")),
)
