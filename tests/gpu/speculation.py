"""Accepted drafts and edits at load in the real engine: which engines are started, and what their counters and logs must say.

The models are those of tests.gpu.models_chain. Where a drafter always says the successor, how far each draft is accepted
follows from the answer.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.gpu.engines import EAGER, LONG, NEAR, Engine, Pair, speculating

CLOSED = tuple(range(64, 80))
ALPHA = 3.0
DECODERS, MTP = (0, 1, 2, 3), (4,)  # layers with an o_proj, in the model and in its MTP block
EIGHT = {"max_num_seqs": 8}
MEDIUM = {"max_model_len": 1024, "max_num_batched_tokens": 1024}
CACHED = {"enable_prefix_caching": True}
EDIT = {
    "ABLIT": "1", "ABLIT_METHOD": "proj", "ABLIT_LAYERS": "0-4", "ABLIT_ALPHA": str(ALPHA),
    "ABLIT_DIRECTION": "{models}/direction.safetensors",
}  # fmt: skip
DONATED = {"ABLIT": "1", "ABLIT_LAYERS": "0-4", "ABLIT_DIR": "{models}/donors"}
WITHOUT = {"ABLIT_INCLUDE_MTP": "0"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
CHANGE = re.compile(
    r"ablation: rank 0 (\w+) layer (\d+): (?:signed ratio (-?[\d.]+), )?rel_l2 [\d.]+, sha256 ([0-9a-f]{64}) -> ([0-9a-f]{64})"
)


def successor(token: int) -> int:
    """Of a token of CLOSED. Raises ValueError for any other."""
    if token not in CLOSED:
        raise ValueError(f"token {token} is not of {CLOSED[0]}..{CLOSED[-1]}")
    return CLOSED[(CLOSED.index(token) + 1) % len(CLOSED)]


def mtp(count: int) -> dict[str, Any]:
    return speculating(method="mtp", num_speculative_tokens=count)


def dflash2(count: int) -> dict[str, Any]:
    return speculating(method="dflash", model="dflash2", num_speculative_tokens=count, attention_backend="FLASH_ATTN")


def _made(name: str, model: str = "glm-exl3", prompts: str = "short", llm: dict[str, Any] | None = None, **more: Any) -> Engine:
    return Engine(name, model, prompts, EIGHT | (llm or {}), **{"limit_s": 300, **more})


BOTH, MODEL = {"model": "proj", "mtp": "proj"}, {"model": "proj"}
# In order of importance: the first ones start first.
SPECULATION = (
    _made("stock", llm=EAGER, times=2),
    _made("mtp3", llm=EAGER | mtp(3), times=2, foretold=True),
    _made("mtp3-graphs", llm=mtp(3), times=2, foretold=True),
    _made("dflash3", llm=EAGER | dflash2(3), foretold=True),
    _made("edited", llm=EAGER, environment=EDIT, edited=MODEL),
    _made("edited-offline", "glm-ablated", llm=EAGER),
    _made("edited-mtp2", llm=EAGER | mtp(2), environment=EDIT, edited=BOTH, foretold=True),
    _made("stock-long", prompts="long", llm=EAGER | LONG),
    _made("mtp3-long", prompts="long", llm=EAGER | LONG | mtp(3), foretold=True),
    _made("broken-mtp3", llm=EAGER | mtp(3), environment=IN_PROCESS, broken="kda"),
    _made("stock-graphs"),
    _made("mtp1", llm=EAGER | mtp(1), foretold=True),
    _made("mtp2", llm=EAGER | mtp(2), foretold=True),
    _made("mtp1-graphs", llm=mtp(1), foretold=True),
    _made("mtp2-graphs", llm=mtp(2), times=3, foretold=True),
    _made("dflash3-graphs", llm=dflash2(3), foretold=True),
    _made("loud-mtp3", "glm-loud", llm=EAGER | mtp(3)),
    _made("loud-mtp3-graphs", "glm-loud", llm=mtp(3)),
    _made("edited-mtp2-graphs", llm=mtp(2), environment=EDIT, edited=BOTH, foretold=True),
    _made("edited-without-mtp2", llm=EAGER | mtp(2), environment=EDIT | WITHOUT, edited=MODEL, foretold=True),
    _made("edited-offline-mtp2", "glm-ablated", llm=EAGER | mtp(2), foretold=True),
    _made("edited-dflash3", llm=EAGER | dflash2(3), environment=EDIT, edited=MODEL, foretold=True),
    _made("donated-mtp2", llm=EAGER | mtp(2), environment=DONATED, edited={"model": "transplant", "mtp": "transplant"}, foretold=True),
    _made("stock-common", prompts="common", llm=MEDIUM),
    _made("mtp2-common-prefix", prompts="common", llm=MEDIUM | CACHED | mtp(2), times=3, foretold=True),
    _made("mtp2-long-prefix", prompts="long", llm=EAGER | LONG | CACHED | mtp(2), times=2, foretold=True),
    _made("dflash3-common-prefix", prompts="common", llm=MEDIUM | CACHED | dflash2(3), times=3, foretold=True),
    _made("stock-again", llm=EAGER, environment={"ABLIT": "0"}, edited={}, last=True),
)  # fmt: skip

LIKE_STOCK: tuple[str, ...] = ("stock-graphs", "mtp1", "mtp2", "mtp3", "mtp1-graphs", "mtp2-graphs", "mtp3-graphs", "stock-again")
LIKE_STOCK += ("dflash3", "dflash3-graphs", "loud-mtp3", "loud-mtp3-graphs")
LIKE_EDITED = ("edited-offline", "edited-mtp2", "edited-mtp2-graphs", "edited-without-mtp2", "edited-dflash3", "donated-mtp2")
SPECULATION_PAIRS = (
    *(Pair(name, "stock") for name in LIKE_STOCK),
    *(Pair(name, "edited") for name in LIKE_EDITED),
    Pair("edited-mtp2", "edited-offline-mtp2"),
    Pair("mtp3-long", "stock-long"),
    Pair("mtp2-long-prefix", "stock-long"),
    Pair("mtp2-common-prefix", "stock-common"),
    Pair("dflash3-common-prefix", "stock-common"),
    Pair("edited", "stock", NEAR, differ=True),
    Pair("broken-mtp3", "stock", NEAR, differ=True),
)


@dataclass(frozen=True)
class Foretold:
    """Of one answer: how many drafts, and how many of their tokens were accepted at each position; the last draft may run past the answer's
    end, so up to `open` more of its tokens may have been."""

    drafts: int
    accepted: tuple[int, ...]
    open: int


def foretold(ids: Sequence[int], count: int) -> Foretold:
    """What becomes of drafts of `count` successors: the first follows the answer's first token, any other the token after those accepted.

    Raises ValueError if a token is not of CLOSED.
    """
    hits, drafts, place, after = [0] * count, 0, 0, 0
    while place < len(ids) - 1:
        drafts += 1
        known = ids[place : place + count + 1]
        taken = next((step for step in range(len(known) - 1) if known[step + 1] != successor(known[step])), len(known) - 1)
        for step in range(taken):
            hits[step] += 1
        after = count - taken if place + taken == len(ids) - 1 else 0
        place += taken + 1
    return Foretold(drafts, tuple(hits), after)


def counted(engine: Engine, result: dict[str, Any]) -> dict[str, Any]:
    """What the counters say, and under "failed" what of it cannot be."""
    counters, count = result["counters"], engine.drafts
    drafts, accepted = (int(counters.get(f"vllm:spec_decode_num_{name}", 0)) for name in ("drafts", "accepted_tokens"))
    positions = [int(value) for value in counters.get("vllm:spec_decode_num_accepted_tokens_per_pos", [])]
    found = {"drafts": drafts, "draft_tokens": int(counters.get("vllm:spec_decode_num_draft_tokens", 0)), "accepted": accepted}
    wrong = []
    if found["draft_tokens"] != count * drafts:
        wrong.append(f"{found['draft_tokens']} draft tokens in {drafts} drafts of {count}")
    if not 0 < accepted < count * drafts:
        wrong.append(f"{accepted} of {count * drafts} draft tokens accepted: partly accepted drafts were not seen")
    if sum(positions) != accepted or positions != sorted(positions, reverse=True):
        wrong.append(f"accepted by position {positions}, together {accepted}")
    if engine.foretold:
        first = [row["ids"] for row in result["answers"]]
        wrong += _against(drafts, accepted, [ids for run in (first, *result["again"]) for ids in run], count)
    return {"what": f"{engine.name}: accepted as the answer says", "failed": "; ".join(wrong), **found, "by_position": positions}


def _against(drafts: int, accepted: int, answers: list[list[int]], count: int) -> list[str]:
    if strange := {token for ids in answers for token in ids} - set(CLOSED):
        return [f"the answers have tokens that are not of the ring: {sorted(strange)[:5]}"]
    told = [foretold(ids, count) for ids in answers]
    wanted, least = sum(one.drafts for one in told), sum(sum(one.accepted) for one in told)
    most = least + sum(one.open for one in told)
    wrong = [] if drafts == wanted else [f"{drafts} drafts, and the answers take {wanted}"]
    return wrong if least <= accepted <= most else [*wrong, f"{accepted} accepted, and the answers take {least} to {most}"]


def edits(engine: Engine, result: dict[str, Any], expected: dict[str, list[str]]) -> dict[str, Any]:
    """Every layer that was to be edited was, into the bytes that a CPU makes of it, and nothing else."""
    found = {(hit[1], int(hit[2])): hit for line in result["ablation"] if (hit := CHANGE.search(line))}
    parts = {"model": DECODERS, "mtp": MTP}
    wanted = {(part, layer): how for part, how in (engine.edited or {}).items() for layer in parts[part]}
    wrong = [f"{part} layer {layer} was not edited" for part, layer in sorted(wanted.keys() - found.keys())]
    wrong += [f"{part} layer {layer} was edited" for part, layer in sorted(found.keys() - wanted.keys())]
    for place in sorted(wanted.keys() & found.keys()):
        wrong += _bytes(place, wanted[place], found[place], expected[str(place[1])])
    return {
        "what": f"{engine.name}: edited as a CPU edits",
        "failed": "; ".join(wrong),
        "layers": sorted(f"{part} {n}" for part, n in found),
    }


def _bytes(place: tuple[str, int], how: str, hit: re.Match[str], expected: list[str]) -> list[str]:
    name = f"{place[0]} layer {place[1]}"
    wrong = [f"{name}: sha256 {kind} is {hit[group]}, not {want}" for kind, group, want in _sums(hit, expected) if hit[group] != want]
    ratio = float(hit[3]) if hit[3] else None
    right = ratio is None if how == "transplant" else ratio is not None and abs(ratio - (1 - ALPHA)) < 0.06
    if not right:
        wrong.append(f"{name}: signed ratio {ratio}")
    return wrong


def _sums(hit: re.Match[str], expected: list[str]) -> Iterator[tuple[str, int, str]]:
    yield "before", 4, expected[0]
    yield "after", 5, expected[1]


def findings(engines: Sequence[Engine], results: dict[str, dict[str, Any]], expected: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """For every engine that answered."""
    for engine in engines:
        result = results.get(engine.name, {})
        if "answers" in result and engine.drafts and not engine.broken:
            yield counted(engine, result)
        if "answers" in result and engine.edited is not None:
            yield edits(engine, result, expected)
