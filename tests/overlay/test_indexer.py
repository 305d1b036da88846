"""The sparse-attention indexer's scores over the pieces of a long prompt: vLLM's own loop on the CPU, its two kernels written out here."""

import importlib
import inspect
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")
import vllm
from vllm.model_executor.custom_op import op_registry
from vllm.utils import deep_gemm
from vllm.v1.attention.backends.mla import indexer as metadata
from vllm.v1.worker import workspace
from vllm_glm_exl3.patches import guard, imported, indexer_logits

PIECES, ROWS, POOLS, TOP = 3, 4, 1000, 8
ONE = ROWS * POOLS * 4  # bytes of a piece's scores, fp32


class AtDecode(Exception):
    """The loop is over, and a decode step would begin."""


@dataclass
class Kernels:
    """`held`: bytes of earlier scores that are in memory whenever the next are computed, and when decoding begins."""

    held: list[int] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)

    def count(self) -> None:
        self.held.append(sum(scores.untyped_storage().nbytes() for made in self.made if (scores := made()) is not None))

    def logits(self, q: Any, k: Any, weights: Tensor, start: Tensor, end: Tensor, clean_logits: bool) -> Tensor:
        self.count()
        scores = torch.rand(len(weights), POOLS, generator=torch.Generator().manual_seed(len(self.made)))
        self.made.append(weakref.ref(scores))
        return scores

    def top_k(self, scores: Tensor, start: Tensor, end: Tensor, out: Tensor, *rest: Any) -> None:
        out.copy_(scores.topk(TOP).indices)

    def decode(self, *rest: Any) -> None:
        self.count()
        raise AtDecode


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    """The model's indexer, imported after `apply` and without the rest of the model (which needs torchvision)."""
    package = ModuleType("vllm.models.glm5next")
    package.__path__ = [str(Path(vllm.__file__).parent / "models/glm5next")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, package.__name__, package)
        patched.setattr(sys, "meta_path", list(sys.meta_path))
        indexer_logits.apply({})
        yield importlib.import_module(indexer_logits.MODULE)
    for name in [name for name in sys.modules if name.startswith(package.__name__)]:
        del sys.modules[name]
    op_registry.pop("sparse_attn_indexer_kpool")  # a second import would be refused


def run(module: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Tensor]:
    """A prompt of PIECES pieces, up to the decode step: Kernels.held, and the tokens that were picked."""
    kernels = Kernels()
    nothing = torch.zeros(1, dtype=torch.int32)
    pieces = [
        metadata.DeepseekV32IndexerPrefillChunkMetadata(
            nothing, nothing, nothing, nothing, nothing, POOLS, ROWS * at, ROWS * (at + 1), 1, True, nothing, POOLS, POOLS
        )
        for at in range(PIECES)
    ]
    tokens = ROWS * PIECES
    whole = metadata.DeepseekV32IndexerMetadata(
        nothing, POOLS, torch.zeros(tokens, dtype=torch.int64), 1, 0, 1, tokens, SimpleNamespace(),
        metadata.DeepseekV32IndexerPrefillMetadata(pieces, POOLS),
    )  # fmt: skip
    monkeypatch.setattr(module, "get_forward_context", lambda: SimpleNamespace(attn_metadata={"layer": whole}))
    monkeypatch.setattr(module, "kv_cache_as_quant_view", kernels.decode)
    monkeypatch.setattr(deep_gemm, "fp8_fp4_mqa_logits", kernels.logits)
    monkeypatch.setattr(torch.ops._C, "top_k_per_row_prefill", kernels.top_k, raising=False)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)  # there is none here
    workspace.init_workspace_manager(torch.device("cpu"))
    out = torch.zeros(tokens, TOP, dtype=torch.int32)
    q = torch.zeros(tokens, 2, 128, dtype=torch.float8_e4m3fn)
    try:
        module.sparse_attn_indexer_kpool(
            torch.zeros(tokens, 1), "layer", torch.zeros(1), q, None, torch.zeros(tokens, 128), torch.zeros(tokens, 2),
            128, None, TOP, 128, POOLS, POOLS, out, True,
        )  # fmt: skip
    except AtDecode:
        pass
    finally:
        workspace.reset_workspace_manager()
    return kernels.held, out


def test_scores_are_given_back(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held, picked = run(module, monkeypatch)
    assert held == [0, 0, 0, 0]
    patched = inspect.getattr_static(module, "_merge_dcp_topk_global")
    monkeypatch.setattr(module, "_merge_dcp_topk_global", patched.__wrapped__)
    held, picked_by_vllm = run(module, monkeypatch)
    assert held == [0, ONE, ONE, ONE]  # each while the next are computed, and the last while decoding
    assert torch.equal(picked, picked_by_vllm)
    assert len(picked[0].unique()) == TOP


def test_a_decode_steps_scores_are_left_alone() -> None:
    scores = torch.ones(2, 3)
    indexer_logits.and_release(lambda *rest, row_starts: None)(scores, None, 1, 0, 1, 1)
    assert scores.untyped_storage().nbytes() == 24  # fp32


def test_another_loop_is_refused(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sparse_attn_indexer_kpool", run)
    with pytest.raises(guard.Mismatch, match=r"sparse_indexer\.sparse_attn_indexer_kpool has source .* GLM53_RELEASE_INDEXER_LOGITS=0"):
        indexer_logits.patch(module)


# --- imported.when ---


def test_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "awaited_module.py").write_text("VALUE = 1\n")
    seen: list[int] = []

    def action(module: Any) -> None:
        seen.append(module.VALUE)
        module.VALUE = 2

    for _ in range(2):
        imported.when("awaited_module", action)
    assert seen == []
    assert importlib.import_module("awaited_module").VALUE == 2
    assert seen == [1]
    imported.when("awaited_module", lambda module: seen.append(module.VALUE))
    assert seen == [1, 2]
    del sys.modules["awaited_module"]


def test_an_error_of_the_action_fails_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "awaited_other.py").write_text("")
    imported.when("awaited_other", lambda module: guard.check(module, "__name__", "", ""))
    with pytest.raises(TypeError):
        importlib.import_module("awaited_other")
    assert "awaited_other" not in sys.modules
