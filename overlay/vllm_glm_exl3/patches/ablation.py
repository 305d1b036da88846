"""ABLIT=1: edit attention's output projections when the weights are loaded, before vLLM packs them for its kernels and before any graph
is captured. What is served is the edited model on every rank, or nothing.

`process_weights_after_loading` is the one function that every loader calls between the two. A loader that does not call it would serve
the stock model: `Worker.load_model` is watched for that.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.errors import BadAblation
from vllm_glm_exl3.patches import guard

SWITCH = "ABLIT=0"
EXPECTED = {"process_weights_after_loading": "815c0f6b5a55ffa4", "load_model": "350a4fb01458c532"}
SUMMARY = "ablation summary: "  # the launcher looks for it in every rank's log
_done: list[str] = []  # parts edited in this process


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "ABLIT", "0")


def apply(environment: Mapping[str, str]) -> None:
    """Raises BadAblation for a variable that makes no sense, before anything is loaded."""
    from vllm.model_executor.model_loader import base_loader
    from vllm.v1.worker.gpu_worker import Worker

    from vllm_glm_exl3.ablation import settings

    settings.read(environment)
    hook = "process_weights_after_loading"
    guard.replace(base_loader, hook, EXPECTED[hook], SWITCH, with_edit)
    guard.replace(Worker, "load_model", EXPECTED["load_model"], SWITCH, with_proof)


def with_edit(original: Callable[..., None]) -> Callable[..., None]:
    def process_weights_after_loading(model: Any, model_config: Any, target_device: Any) -> None:
        edit_loaded(model, model_config)
        original(model, model_config, target_device)

    return process_weights_after_loading


def with_proof(original: Callable[..., None]) -> Callable[..., None]:
    def load_model(self: Any, **options: Any) -> None:
        before = len(_done)
        original(self, **options)
        if wanted(os.environ) and "model" not in _done[before:]:
            loader = self.vllm_config.load_config.load_format
            raise BadAblation(f"ABLIT=1, and load format {loader} gave no chance to edit the weights; leave LOAD_FORMAT empty, or ABLIT=0")

    return load_model


def edit_loaded(model: Any, model_config: Any) -> None:
    """Edit a model that has its weights, if it is the target or its MTP block. Raises BadAblation."""
    if not wanted(os.environ):
        return
    from vllm_glm_exl3.ablation import edit, settings

    options, part = settings.read(os.environ), "mtp" if model_config.runner_type == "draft" else "model"
    if part == "mtp" and not (options.include_mtp and has_mtp(model)):
        return  # before its configuration is asked: a drafter of its own counts its own layers
    numbers = _numbers(options.layers, model_config, part)
    if not numbers:
        return
    how, rank = edit.method(options), _rank()
    changes = edit.apply(edit.targets(model, numbers, mtp=part == "mtp"), how)
    _report(edit.summary(changes, how, *rank, part), changes)
    _done.append(part)


def _numbers(layers: str, model_config: Any, part: str) -> tuple[int, ...]:
    """The layers to edit in this part. Raises BadAblation if the checkpoint is edited already, or if no layer of the model is named."""
    from vllm_glm_exl3.ablation import edit, formula

    if getattr(model_config.hf_config, "ablation", None):
        raise BadAblation("the checkpoint's config.json says that it is edited already (its key ablation): ABLIT=0")
    config = model_config.hf_text_config
    decoders, following = int(config.num_hidden_layers), int(getattr(config, "num_nextn_predict_layers", 0) or 0)
    parts = edit.split(formula.layers(layers, decoders + following), decoders)
    if not parts["model"]:
        raise BadAblation(f"ABLIT_LAYERS={layers} names none of the model's {decoders} layers")
    return parts[part]


def has_mtp(model: Any) -> bool:
    """Whether a draft model is the checkpoint's own MTP block, and not a drafter with layers of its own."""
    return any(".mtp_block." in name for name, _ in model.named_modules())


def _rank() -> tuple[int, int]:
    """Rank and size of the tensor parallel group. Raises BadAblation where a rank has only some of the layers."""
    from vllm.distributed import get_pp_group, get_tp_group

    if get_pp_group().world_size > 1:
        raise BadAblation("ABLIT=1 with pipeline parallelism: a rank has only some of the layers; use tensor parallelism")
    return get_tp_group().rank_in_group, get_tp_group().world_size


def _report(summary: Any, changes: Any) -> None:
    from vllm.logger import init_logger

    logger = init_logger("vllm.glm_exl3.ablation")  # vLLM shows what is logged below "vllm", and nothing of other names
    for change in changes:
        ratio = "" if change.ratio is None else f"signed ratio {change.ratio:.5f}, "
        line = f"rank {summary.rank} {summary.part} layer {change.layer}: {ratio}rel_l2 {change.rel_l2:.5f}"
        logger.info("ablation: %s, sha256 %s -> %s", line, change.sha256_before, change.sha256_after)
    logger.info("%s%s", SUMMARY, summary.line())
