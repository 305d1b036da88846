"""`python -m bench.peers --out FILE`: our client and its peers against a scripted server, and against a real one with --base-url."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers import aiperf, guidellm, llama_benchy, ours, vllm_bench
from bench.peers.peer import Peer
from bench.peers.runs import Case, Row, Server, live, row
from bench.peers.table import Cost, Receipt, cost_table, cost_verdict, joined, live_table, table, wrong
from bench.scripted import UsageMode

PEERS: tuple[Peer, ...] = (ours.PEER, llama_benchy.PEER, vllm_bench.PEER, guidellm.PEER, aiperf.PEER)
USAGES: tuple[UsageMode, ...] = ("final", "per-chunk", "none")
CASES = tuple(Case(per_chunk, usage) for per_chunk in (1, 4, 8) for usage in USAGES)
LOAD_STREAMS, LOAD_GAP_S, LOAD_TOKENS = 32, 0.002, 500


def cost(peer: Peer, say: Callable[[str], None]) -> Cost:
    """CPU under load: a run of eight requests per stream less a run of one."""
    found = []
    for requests in (LOAD_STREAMS, 8 * LOAD_STREAMS):
        case = Case(1, "final", LOAD_STREAMS, requests, LOAD_TOKENS, LOAD_GAP_S)
        done = row(peer, case)
        say(f"{peer.name}: {requests} requests under load: CPU {done.cpu_s} s, {done.failure or 'done'}")
        if done.failure or done.cpu_s is None:
            return Cost(peer=peer.name, streams=LOAD_STREAMS, gap_s=LOAD_GAP_S, cpu_s_per_1000=None, failure=done.failure)
        found.append(done.cpu_s)
    tokens = 7 * LOAD_STREAMS * LOAD_TOKENS
    per_1000 = round((found[1] - found[0]) / tokens * 1000, 5)
    return Cost(peer=peer.name, streams=LOAD_STREAMS, gap_s=LOAD_GAP_S, cpu_s_per_1000=per_1000)


def _said(done: Row) -> str:
    bad = ", ".join(f"{verdict.figure} {verdict.error:+.1%}" for verdict in done.verdicts if verdict.wrong)
    state = done.failure or (f"wrong: {bad}" if bad else "right in all that it reports")
    return f"{done.peer}, {done.per_chunk} per chunk, usage {done.usage} ({done.wall_s} s): {state}"


def figures(peers: Sequence[Peer], cases: Sequence[Case], say: Callable[[str], None]) -> tuple[Row, ...]:
    rows = []
    for case in cases:
        for peer in peers:
            rows.append(row(peer, case))
            say(_said(rows[-1]))
    return tuple(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Compare benchmark tools against a known server.")
    parser.add_argument("--out", type=Path, help="where the receipt goes (default: nowhere)")
    parser.add_argument("--add", action="store_true", help="keep what the receipt at --out has and this run does not measure")
    parser.add_argument("--peers", help="only these, by name, with commas between")
    parser.add_argument("--parts", default="figures,load", help="figures, load, or none; live is added by --base-url")
    parser.add_argument("--base-url", help="also measure this real server, without /v1")
    parser.add_argument("--model", help="the real server's model name")
    parser.add_argument("--dialect", default="llamacpp", choices=["vllm", "llamacpp", "openai"], help="what the real server is (for ours)")
    parser.add_argument("--tokenizer", type=Path, help="folder of the real model's tokenizer (default: the small one of our own)")
    options = parser.parse_args()
    if options.base_url and not options.model:
        parser.error("--base-url needs --model")
    if options.add and not (options.out and options.out.exists()):
        parser.error("--add needs a receipt at --out")
    if wrong_parts := set(options.parts.split(",")) - {"figures", "load", "none"}:
        parser.error(f"--parts knows figures, load and none, not {', '.join(sorted(wrong_parts))}")
    return options


def main() -> int:
    options = _options()
    names = options.peers.split(",") if options.peers else [peer.name for peer in PEERS]
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        print(
            f"error: no peer is called {', '.join(sorted(unknown))}; there are: {', '.join(peer.name for peer in PEERS)}", file=sys.stderr
        )
        return 2
    peers = [peer for peer in PEERS if peer.name in names]
    parts = options.parts.split(",")
    receipt = Receipt(
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=f"python -m bench.peers --parts {options.parts}" + (f" --base-url URL --model {options.model}" if options.base_url else ""),
        python=platform.python_version(),
        cores=os.cpu_count() or 0,
        load_before=round(os.getloadavg()[0], 2),
        rows=figures(peers, CASES, print) if "figures" in parts else (),
        costs=tuple(cost(peer, print) for peer in peers) if "load" in parts else (),
        live=_live(peers, options) if options.base_url else (),
    )
    if options.add:
        receipt = joined(Receipt.model_validate_json(options.out.read_text()), receipt)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(receipt.model_dump_json(indent=1) + "\n")
    for shown in (
        ([table(receipt)] if receipt.rows else [])
        + [cost_table(receipt)] * bool(receipt.costs)
        + [live_table(receipt)] * bool(receipt.live)
    ):
        print("", shown, sep="\n")
    print(cost_verdict(receipt, ours.PEER.name) or "")
    for name, (bad, all_) in wrong(receipt).items():
        print(f"{name}: {bad} of {all_} figures wrong")
    return 0


def _live(peers: Sequence[Peer], options: argparse.Namespace) -> tuple[Row, ...]:
    server = Server(options.base_url.rstrip("/"), options.model, options.tokenizer, options.dialect)
    return tuple(live(peer, Case(1, "final", streams=1, requests=4, tokens=64), server) for peer in peers)


if __name__ == "__main__":
    sys.exit(main())
