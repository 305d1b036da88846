"""How much time the launcher adds: `python -m tests.testbed.measure OUT.json` on a machine with the testbed installed.

`up`: wall time of `invoke up --kit twin` minus the engine's own time, which is from the first container's start (docker's clock) to
the first 200 of /health (asked every 20 ms by this process). `status`, `plan`, `--list`: median and extremes of seven calls.
"""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.testbed import image, model, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed

ROOT = Path(__file__).parents[2]
HEALTH = "http://10.77.0.1:18888/health"
CALLS = 7
GOALS_S = {"up_overhead": 5.0, "status": 1.0, "list": 0.5, "plan": 0.7}


def invoke(*words: str) -> float:
    """Wall seconds of one `invoke`; it must end with 0."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"invoke {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return time.monotonic() - begin


def repeated(*words: str) -> dict[str, float]:
    walls = [invoke(*words) for _ in range(CALLS)]
    return {"median_s": round(statistics.median(walls), 3), "min_s": round(min(walls), 3), "max_s": round(max(walls), 3), "n": CALLS}


class FirstHealth(threading.Thread):
    """Notes when /health first answers 200, in seconds since the epoch."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.at: float | None = None

    def run(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while self.at is None:
            try:
                with opener.open(HEALTH, timeout=1):
                    self.at = time.time()
            except OSError:
                time.sleep(0.02)


def started_at(host: Host, container: str) -> float:
    said = host.run("docker", "inspect", "--format", "{{.State.StartedAt}}", container).strip()
    return datetime.datetime.fromisoformat(said[:26] + "+00:00").timestamp()


def measure_up(hosts: tuple[Host, ...]) -> dict[str, float]:
    health = FirstHealth()
    health.start()
    wall_s = invoke("up", "--kit", "twin")
    health.join(timeout=5)
    assert health.at is not None
    first = min(started_at(host, name) for host, name in zip(hosts, ("spark-lab-head", "spark-lab-worker"), strict=True))
    engine_s = health.at - first
    return {"wall_s": round(wall_s, 2), "engine_s": round(engine_s, 2), "overhead_s": round(wall_s - engine_s, 2)}


def measured() -> dict[str, Any]:
    vllm_env.ensure()
    model.make(vllm_env.CACHE / "tiny-qwen3-moe", 0)
    with Testbed(hosts=2) as bed:
        for host in bed.hosts:
            image.load(host)
        up = measure_up(bed.hosts)
        status, passive = repeated("status", "--kit", "twin"), repeated("status", "--kit", "twin", "--passive")
        down_s = round(invoke("down", "--kit", "twin"), 2)
    looks = {"status": status, "status_passive": passive, "list": repeated("--list"), "plan": repeated("plan", "--kit", "twin")}
    return {"up": up, **looks, "down_s": down_s}


def main() -> None:
    out = Path(sys.argv[1])
    begin_load = os.getloadavg()[0]
    found = {
        "what": "launcher overhead on the two-host testbed",
        "command": "python -m tests.testbed.measure",
        "date": datetime.date.today().isoformat(),
        "machine": {"cores": len(os.sched_getaffinity(0)), "system": platform.platform(), "load_before": round(begin_load, 2)},
        "goals_s": GOALS_S,
        **measured(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    print(out.read_text())


if __name__ == "__main__":
    main()
