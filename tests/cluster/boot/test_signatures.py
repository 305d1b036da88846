"""Which line of several logs explains a failed start."""

import pytest

from cluster.boot import signatures
from cluster.boot.look import Line
from tests.cluster.boot.recorded import lines, said

# kind, a line as the field reports or vLLM 0.32's sources have it
KNOWN = (
    ("memory", "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"),
    ("memory", "ValueError: Free memory on device cuda:0 (101.2/121.69 GiB) on startup is less than desired GPU memory utilization (0.87"),
    ("memory", "ValueError: To serve at least one request with the model's max seq len (850000), (13.56 GiB KV cache is needed, which is "
               "larger than the available KV cache memory (12.4 GiB)."),
    ("memory", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
    ("memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("memory", "InstantTensor: buffer_size exceeds device memory budget"),
    ("settings", "vllm serve: error: argument --dtype: invalid choice: 'nonsense'"),
    ("port", "OSError: [Errno 98] Address already in use"),
    ("fabric", "NCCL WARN Call to ibv_modify_qp failed with 61 No data available errno 61"),
    ("fabric", "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"),
    ("fabric", "RuntimeError: Unable to find address for: enp1s0f1np1"),
    ("engine", "FileNotFoundError: [Errno 2] No such file or directory: _multiprocessing.SemLock"),
    ("engine", "TimeoutError: RPC call to sample_tokens timed out."),
    ("peers", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("peers", "INFO [shm_broadcast.py:109] No available shared memory broadcast block found in 60 seconds."),
    ("peers", "torch.distributed.DistBackendError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), KNOWN)
def test_known_lines(kind: str, text: str) -> None:
    found = signatures.signature(text)
    assert found is not None
    assert found.kind == kind
    assert found.hint


def test_a_good_boot_shows_no_signature() -> None:
    for name in ("vllm-head.log", "vllm-worker.log"):
        assert [line.text for line in lines(name) if signatures.signature(line.text)] == []
    assert signatures.cause({"head": lines("vllm-head.log"), "worker": lines("vllm-worker.log")}) is None


def test_memory_on_one_rank_outweighs_earlier_noise_on_the_others() -> None:
    """Field report F10: the loud errors are those of the healthy ranks."""
    head = said("NCCL WARN socketProgress: Connection closed by remote peer", "ERROR something else", at=100)
    worker = said("ValueError: Free memory on device cuda:0 (9/121 GiB) on startup is less than desired", at=130)
    found = signatures.cause({"head": head, "worker": worker})
    assert found is not None
    assert (found.role, found.line.at_unix_s) == ("worker", 130)
    assert found.told().startswith("less memory was free at the start than the engine was told to use: worker: ValueError: Free memory")


def test_of_one_kind_the_first_in_time_counts() -> None:
    late = [Line(20, "CUDA out of memory")]
    found = signatures.cause({"head": late, "worker": [Line(10, "std::bad_alloc"), Line(30, "CUDA out of memory")]})
    assert found is not None
    assert (found.role, found.line.at_unix_s) == ("worker", 10)


def test_without_a_known_line_the_first_error() -> None:
    found = signatures.cause({"head": said("INFO fine", "ERROR second", at=50), "worker": said("INFO", "KeyError: 'x'", at=40)})
    assert found is not None
    assert found.signature is None
    assert found.told() == "worker: KeyError: 'x'"
    assert signatures.cause({"head": said("INFO no error here"), "worker": []}) is None


@pytest.mark.parametrize(
    "text",
    [
        "INFO [shm_broadcast.py:109] No available shared memory broadcast block found in 60 seconds.",
        "[c10d] 1/2 clients joined",
        "DEBUG Waiting for 1 local, 0 remote core engine proc(s) to start.",
    ],
)
def test_noise_of_waiting_ranks(text: str) -> None:
    assert signatures.NOISE.search(text)


def test_no_line_of_a_good_boot_is_noise() -> None:
    assert not [line for name in ("vllm-head.log", "vllm-worker.log") for line in lines(name) if signatures.NOISE.search(line.text)]
