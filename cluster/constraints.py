"""Forbidden combinations of settings: `check` refuses them all at once, before anything is touched.

The rules are data, in constraint_memory, constraint_kernels, constraint_launch and constraint_extra. What only the nodes can tell is
listed in ON_NODES for doctor and preflight; together they cover the 22 groups of the study of the public recipe.
"""

from __future__ import annotations

from cluster.constraint_extra import EXTRA
from cluster.constraint_kernels import KERNELS
from cluster.constraint_launch import LAUNCH, ON_NODES, is_loopback
from cluster.constraint_memory import MEMORY
from cluster.constraint_model import EVERY, GB10, PAIR, TRIPLE, Constraint, OnNodes, Scope, adaptive_words, described, is_whole
from cluster.constraint_weights import WEIGHTS
from cluster.errors import BadSettings
from cluster.settings import Effective

__all__ = ["ADVICE", "CONSTRAINTS", "ON_NODES", "Constraint", "OnNodes", "Scope", "broken", "check", "documented", "warnings"]

CONSTRAINTS: tuple[Constraint, ...] = (*MEMORY, *KERNELS, *LAUNCH, *EXTRA, *WEIGHTS)


def _devices(e: Effective) -> str:
    missing = [f"{role}_cx7_if" for role in e.kit.nodes if not e.settings.node(role).cx7_if]
    return described(e, missing) if len(e.kit.nodes) > 1 else ""


def _long_drafts(e: Effective) -> bool:
    s = e.settings
    on = s.spec_method == "dflash" and s.glm53_adaptive_k not in (None, "off")
    return on and any(int(word) > s.dflash_tokens for word in adaptive_words(s) if is_whole(word))


# Works, or sometimes works: said, not refused.
ADVICE: tuple[Constraint, ...] = (
    Constraint(
        "open-api", 0, EVERY, ("host", "vllm_api_key"),
        lambda e: not is_loopback(e.settings.host) and not e.settings.vllm_api_key,
        rule="open the API to a network without VLLM_API_KEY",
        evidence="everyone who reaches the port may use the server",
        hint="VLLM_API_KEY=..., or HOST=127.0.0.1 and an ssh tunnel",
    ),
    Constraint(
        "two-memory", 6, PAIR, ("gpu_mem_util",),
        lambda e: e.settings.gpu_mem_util > 0.85,
        rule="go above GPU_MEM_UTIL 0.85 on two nodes",
        evidence="0.88 booted once in four; 0.87 with a 256k prefill crashed a head; some kits never have that much free",
        hint="GPU_MEM_UTIL=0.85",
    ),
    Constraint(
        "three-memory", 17, TRIPLE, ("gpu_mem_util",),
        lambda e: e.settings.gpu_mem_util > 0.80,
        rule="go above GPU_MEM_UTIL 0.80 on three nodes",
        evidence="the recipe's code says 0.87, its three-node file 0.80",
        hint="GPU_MEM_UTIL=0.80",
    ),
    Constraint(
        "network-devices", 16, GB10, (), _devices,
        rule="leave *_CX7_IF empty",
        evidence="NCCL and Gloo then choose a device themselves, often the management network",
        hint="the name that `ip link` shows for the fabric's address, on each node",
    ),
    Constraint(
        "adaptive-above-k", 10, GB10, ("glm53_adaptive_k_set", "dflash_tokens"), _long_drafts,
        rule="list adaptive draft lengths above DFLASH_TOKENS",
        evidence="their graphs are captured and never used",
        hint="GLM53_ADAPTIVE_K_SET up to DFLASH_TOKENS (four nodes: 1,2,3)",
    ),
)  # fmt: skip


def broken(effective: Effective, rules: tuple[Constraint, ...] = CONSTRAINTS) -> list[tuple[Constraint, str]]:
    """The constraints that do not hold, each with what is wrong: settings, values, sources."""
    found = []
    for rule in rules:
        verdict = rule.applies(effective.kit) and rule.broken(effective)
        if verdict:
            detail = verdict if isinstance(verdict, str) else ""
            found.append((rule, "; ".join(filter(None, (described(effective, rule.settings), detail)))))
    return found


def check(effective: Effective) -> None:
    """Raise BadSettings (exit code 2) that lists every broken constraint; return when there is none."""
    found = broken(effective)
    if found:
        things = "a combination" if len(found) == 1 else f"{len(found)} combinations"
        lines = [f"kit {effective.kit.name}: {things} of settings that must not run"]
        for rule, what in found:
            lines += [f"{rule.id}: {what}", f"  why: {rule.evidence}", f"  try: {rule.hint}"]
        raise BadSettings("\n".join(lines))


def warnings(effective: Effective) -> list[str]:
    """One line for each thing that works, or works sometimes, and is unwise."""
    return [f"{rule.id}: {what}: {rule.evidence}; try: {rule.hint}" for rule, what in broken(effective, ADVICE)]


def documented() -> str:
    """The "do not" list for the README: one markdown line for each constraint, grouped by where it applies.

    The evidence is left out there: it stands in every refusal, where it is wanted.
    """
    places = list(dict.fromkeys(c.applies.words for c in CONSTRAINTS))
    return "".join(f"{where}\n\n{_listed(where)}\n" for where in places)


def _listed(where: str) -> str:
    return "".join(f"- Do not {c.rule}. Instead: {c.hint}. (`{c.id}`)\n" for c in CONSTRAINTS if c.applies.words == where)
