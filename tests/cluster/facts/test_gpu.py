"""nvidia-smi's CSV: units in the header and the value, N/A for what a GB10 does not have."""

from typing import Any

from cluster.facts.gpu import App, parse
from cluster.facts.raw import Raw
from tests.cluster.facts.recorded import GPU, ran


def gpu(**runs: Any) -> Any:
    return parse(Raw({}, runs, {}))


def test_an_idle_gpu() -> None:
    found = gpu(**{"gpu": ran(GPU), "gpu-reasons": ran("clocks_event_reasons.active\n0x0000000000000001\n")})
    assert (found.name, found.driver, found.vbios) == ("NVIDIA GB10", "580.173.02", "9A.0B.1E.00.00")
    assert (found.sm_mhz, found.max_sm_mhz, found.power_w, found.temperature_c, found.utilisation) == (208, 3003, 4.53, 39, 0)
    assert (found.memory_used_bytes, found.reasons, found.slowed, found.busy, found.apps) == (None, 1, (), False, ())


def test_what_is_not_available_is_none() -> None:
    text = "name, clocks.current.sm [MHz], power.draw [W], utilization.gpu [%]\nNVIDIA GB10, [N/A], [Not Supported], [Unknown Error]\n"
    found = gpu(gpu=ran(text))
    assert (found.sm_mhz, found.power_w, found.utilisation, found.driver, found.reasons) == (None, None, None, None, None)


def test_no_gpu() -> None:
    assert gpu(gpu=None) is None
    assert gpu(gpu=ran("", code=9, err="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")) is None
    assert gpu(gpu=ran("No devices were found\n")) is None


def test_what_slows_it() -> None:
    reasons = "clocks_event_reasons.active\n0x00000000000000C8\n"
    found = gpu(**{"gpu": ran(GPU), "gpu-reasons": ran(reasons)})
    assert found.slowed == ("hardware slowdown", "hardware thermal limit", "power brake")


def test_processes_on_it() -> None:
    apps = "pid, process_name, used_gpu_memory [MiB]\n4242, /usr/bin/python3, 98304 MiB\n17, /opt/app,with comma, [N/A]\nbad, x, 1 MiB\n"
    found = gpu(**{"gpu": ran(GPU), "gpu-apps": ran(apps)})
    assert found.apps[0] == App(4242, "/usr/bin/python3", 98304 * 1024 * 1024)
    assert found.apps[1].pid == 17
    assert len(found.apps) == 2


def test_load() -> None:
    busy = GPU.replace("208 MHz", "513 MHz").replace(" 0 %", " 96 %")
    found = gpu(gpu=ran(busy))
    assert (found.sm_mhz, found.utilisation, found.busy) == (513, 0.96, True)
