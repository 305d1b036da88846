"""When a start counts as stalled, from looks made up by hand."""

import dataclasses

import pytest

from cluster.boot import evidence, phases, stall
from cluster.boot.evidence import Kept
from cluster.boot.look import Deep, Line, Look
from cluster.boot.stall import Pulse
from cluster.probe import Probe

PROBE = Probe("head", None, (7,), None, False, None, False, (), None, None)
DEEP = Deep(None, {}, 1 << 30, 2 << 30, 0, cold_cache=False)


def look(at: float, cpu_s: float = 0.0, *texts: str, state: str = "S", deep: Deep | None = None) -> Look:
    return Look(PROBE, at, "boot", tuple(Line(at, text) for text in texts), "", ((7, "vllm", state),), cpu_s, deep)


def pulse(*looks: Look) -> Pulse:
    """The pulse after these looks."""
    found = stall.first(looks[0])
    for each in looks[1:]:
        found = stall.beat(found, each)
    return found


def idle(until: int, begin: int = 0, **options: str) -> list[Look]:
    """A look each second without any progress."""
    return [look(at, **options) for at in range(begin, until + 1)]  # type: ignore[arg-type]


def judged(role_phases: dict[str, str], pulses: dict[str, Pulse], now: float, override_s: float | None = None) -> stall.Stall | None:
    found = {role: phases.begin(0, 0, phase) for role, phase in role_phases.items()}
    return stall.judge(found, pulses, dict.fromkeys(pulses, now), override_s)


def test_idle_ranks_stall_at_the_limit_of_their_phase() -> None:
    pulses = {"head": pulse(*idle(300)), "worker": pulse(*idle(300))}
    assert judged({"head": "join", "worker": "process"}, pulses, 299) is None  # the head may take 300 s
    found = judged({"head": "join", "worker": "process"}, pulses, 300)
    assert found == stall.Stall("idle", "worker", "process", 300, 180)  # named: the one that is least far


def test_one_rank_at_work_is_no_stall() -> None:
    works = pulse(*[look(at, at * 0.9) for at in range(301)])
    assert judged({"head": "load", "worker": "load"}, {"head": works, "worker": pulse(*idle(300))}, 300) is None


def test_setting_replaces_the_idle_limits() -> None:
    pulses = {"head": pulse(*idle(9)), "worker": pulse(*idle(9))}
    assert judged({"head": "join", "worker": "load"}, pulses, 7.9, override_s=8) is None
    found = judged({"head": "join", "worker": "load"}, pulses, 8, override_s=8)
    assert found is not None
    assert (found.phase, found.limit_s) == ("join", 8)


def test_cold_cache_gives_more_time() -> None:
    cold = pulse(look(0, deep=dataclasses.replace(DEEP, cold_cache=True)), *idle(700, 1))
    assert judged({"head": "profile"}, {"head": cold}, 700) is None
    assert judged({"head": "profile"}, {"head": cold}, 2700) is not None
    assert judged({"head": "profile"}, {"head": pulse(look(0, deep=DEEP), *idle(700, 1))}, 700) is not None


def test_a_log_line_is_progress_and_what_waiting_ranks_repeat_is_not() -> None:
    assert pulse(*idle(50), look(51, 0.0, "INFO next")).progress_at == 51
    assert pulse(*idle(50), look(51, 0.0, "No available shared memory broadcast block found in 60 seconds")).progress_at == 0


def test_use_of_the_processor() -> None:
    """5 % of a core over five seconds is progress; what idle threads use is not."""
    assert pulse(*[look(at, at * 0.06) for at in range(61)]).progress_at == 60
    assert pulse(*[look(at, at * 0.01) for at in range(61)]).progress_at == 0
    assert pulse(*[look(at, at * 0.06) for at in range(61)]).cores == pytest.approx(0.06)


@pytest.mark.parametrize(("use", "watts", "works"), [(95.0, 60.0, True), (95.0, None, True), (96.0, 20.0, False), (0.0, 60.0, False)])
def test_use_of_the_gpu(use: float, watts: float | None, works: bool) -> None:
    """96 % at 20 W is a GPU that spins in a collective (field reports A22)."""
    seen = look(60, deep=dataclasses.replace(DEEP, gpus=((use, watts),)))
    assert (pulse(look(0), seen).progress_at == 60) is works


def test_stopped_process_stalls_alone() -> None:
    busy = pulse(*[look(at, at * 0.9) for at in range(400)])
    stopped = pulse(look(0), *idle(400, 10, state="T"))
    assert judged({"head": "kv", "worker": "kv"}, {"head": busy, "worker": stopped}, 309) is None
    found = judged({"head": "kv", "worker": "kv"}, {"head": busy, "worker": stopped}, 310)
    assert found is not None
    assert (found.why, found.role, found.limit_s) == ("stopped", "worker", 300)
    continued = stall.beat(stopped, look(401))
    assert judged({"head": "kv", "worker": "kv"}, {"head": busy, "worker": continued}, 402) is None


def test_busy_and_silent_for_too_long_where_ranks_meet() -> None:
    spins = {"head": pulse(*[look(at, at * 1.0) for at in range(901)]), "worker": pulse(*[look(at, at * 1.0) for at in range(901)])}
    assert judged({"head": "join", "worker": "join"}, spins, 899) is None
    found = judged({"head": "join", "worker": "join"}, spins, 900)
    assert found is not None
    assert (found.why, found.limit_s) == ("spinning", 900)
    assert judged({"head": "warmup", "worker": "join"}, spins, 900) is None  # a compile prints nothing for long


def test_evidence_names_everything() -> None:
    deep = Deep(((96.0, 20.0),), {"10.0.0.2": {"ESTABLISHED": 3, "SYN_SENT": 1}, "10.0.0.3": {}}, 3 << 30, 120 << 30, 0, cold_cache=False)
    where = phases.Phases(0, "load", 10, 12, 83)
    text = evidence.state(where, pulse(*idle(20)), look(41, state="D", deep=deep))
    assert text == (
        "weights 12 of 83 since 31 s; 1 processes (D 1), 0.0 cores used; GPU 96 % 20 W; 3.0 of 120.0 GiB memory available; "
        "10.0.0.2: 3 ESTABLISHED, 1 SYN_SENT; 10.0.0.3: no connection"
    )
    kept = {"head": Kept(), "worker": Kept()}
    kept["head"].add([Line(1, "INFO a"), Line(2, "NCCL WARN b")])
    kept["worker"].add([Line(3, "ValueError: No available memory for the cache blocks")])
    error = evidence.stalled(stall.Stall("idle", "worker", "join", 12.3, 8), {"head": "x", "worker": "y"}, kept, "docker run ...")
    assert str(error).splitlines() == [
        "worker: the start has stalled: no progress for 12 s in phase 'ranks meet' (limit 8 s, STALL_TIMEOUT); "
        "nothing was logged and no processor was used",
        "head: x",
        "worker: y",
        "most likely: nothing is left for the KV cache: worker: ValueError: No available memory for the cache blocks",
        "ran: docker run ...",
        "last lines:",
        "  head: INFO a",
        "  head: NCCL WARN b",
        "  worker: ValueError: No available memory for the cache blocks",
        "try: lower MAX_MODEL_LEN, or reserve with KV_CACHE_MEMORY_BYTES; look at worker first, the rank that is least far; "
        "STALL_TIMEOUT=... waits longer",
    ]


def test_known_lines_survive_a_long_log() -> None:
    kept = Kept()
    kept.add([Line(1, "CUDA out of memory")])
    kept.add([Line(2 + number, f"INFO {number}") for number in range(1000)])
    found = evidence.likely({"head": kept}, known_only=True)
    assert found is not None
    assert found.line.text == "CUDA out of memory"
    assert len(kept.all()) == 401
