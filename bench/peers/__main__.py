"""`python -m bench.peers --out FILE`: our client and its peers against a scripted server; with --local on the local kit too, and with
--base-url on any server."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.errors import BenchError
from bench.peers import aiperf, guidellm, kit, llama_benchy, ours, vllm_bench
from bench.peers.peer import Peer
from bench.peers.runs import Case, Row, Server, live, on_kit, row
from bench.peers.table import Cost, Receipt, cost_table, cost_verdict, joined, live_table, table, wrong
from bench.scripted import UsageMode

PEERS: tuple[Peer, ...] = (ours.PEER, llama_benchy.PEER, vllm_bench.PEER, guidellm.PEER, aiperf.PEER)
USAGES: tuple[UsageMode, ...] = ("final", "per-chunk", "none")
CASES = tuple(Case(per_chunk, usage) for per_chunk in (1, 4, 8) for usage in USAGES)
LIVE = tuple(Case(1, "final", streams, requests=4 * streams, tokens=64) for streams in (1, kit.LANES))
LOAD_STREAMS, LOAD_GAP_S, LOAD_TOKENS, LOAD_RUNS = 32, 0.002, 500, 3


def cost(peer: Peer, measure: Callable[[Peer, Case], Row], say: Callable[[str], None]) -> Cost:
    """CPU under load: a run of eight requests per stream less a run of one, each LOAD_RUNS times by turns. The least of each counts: what
    disturbs a run adds to it, and a tool's start may cost as much as its run."""
    spent: dict[int, list[float]] = {LOAD_STREAMS: [], 8 * LOAD_STREAMS: []}
    for requests, seconds in [*spent.items()] * LOAD_RUNS:
        done = measure(peer, Case(1, "final", LOAD_STREAMS, requests, LOAD_TOKENS, LOAD_GAP_S))
        say(f"{peer.name}: {requests} requests under load: CPU {done.cpu_s} s, {done.failure or 'done'}")
        if done.failure or done.cpu_s is None:
            return Cost(peer=peer.name, streams=LOAD_STREAMS, gap_s=LOAD_GAP_S, cpu_s_per_1000=None, failure=done.failure)
        seconds.append(done.cpu_s)
    short, long = spent.values()
    per_1000 = round((min(long) - min(short)) / (7 * LOAD_STREAMS * LOAD_TOKENS) * 1000, 5)
    return Cost(
        peer=peer.name, streams=LOAD_STREAMS, gap_s=LOAD_GAP_S, cpu_s_per_1000=per_1000, short_cpu_s=tuple(short), long_cpu_s=tuple(long)
    )


def _said(done: Row) -> str:
    bad = ", ".join(f"{verdict.figure} {verdict.error:+.1%}" for verdict in done.verdicts if verdict.wrong)
    state = done.failure or (f"wrong: {bad}" if bad else "right in all that it reports")
    return f"{done.peer}, {done.streams} streams, {done.per_chunk} per chunk, usage {done.usage} ({done.wall_s} s): {state}"


def figures(
    peers: Sequence[Peer], cases: Sequence[Case], measure: Callable[[Peer, Case], Row], say: Callable[[str], None]
) -> tuple[Row, ...]:
    """Every peer in every case."""
    rows = []
    for case in cases:
        for peer in peers:
            rows.append(measure(peer, case))
            say(_said(rows[-1]))
    return tuple(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Compare benchmark tools against a known server.")
    parser.add_argument("--out", type=Path, help="where the receipt goes (default: nowhere)")
    parser.add_argument("--add", action="store_true", help="keep what the receipt at --out has and this run does not measure")
    parser.add_argument("--peers", help="only these, by name, with commas between")
    parser.add_argument("--parts", default="figures,load", help="figures, load, or none; a real server is added by --local or --base-url")
    real = parser.add_mutually_exclusive_group()
    real.add_argument("--local", action="store_true", help="also measure the local kit, started for this on a free port (4 minutes)")
    real.add_argument("--base-url", help="also measure this real server, without /v1")
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
    if unknown := set(names) - {peer.name for peer in PEERS}:
        there = ", ".join(peer.name for peer in PEERS)
        print(f"error: no peer is called {', '.join(sorted(unknown))}; there are: {there}", file=sys.stderr)
        return 2
    try:
        receipt = _measured([peer for peer in PEERS if peer.name in names], options)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.add:
        receipt = joined(Receipt.model_validate_json(options.out.read_text()), receipt)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(receipt.model_dump_json(indent=1) + "\n")
    _show(receipt)
    return 0


def _measured(peers: Sequence[Peer], options: argparse.Namespace) -> Receipt:
    """Raises BenchError where the local kit does not start."""
    parts = options.parts.split(",")
    where = " --local" * options.local + (f" --base-url URL --model {options.model}" if options.base_url else "")
    receipt = Receipt(
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=f"python -m bench.peers --parts {options.parts}{where}",
        python=platform.python_version(),
        cores=os.cpu_count() or 0,
        load_before=round(os.getloadavg()[0], 2),
        rows=figures(peers, CASES, row, print) if "figures" in parts else (),
        costs=tuple(cost(peer, row, print) for peer in peers) if "load" in parts else (),
    )
    if options.local:
        return receipt.model_copy(update=_on_local_kit(peers))
    return receipt.model_copy(update={"live": _live(peers, options)}) if options.base_url else receipt


def _on_local_kit(peers: Sequence[Peer]) -> dict[str, object]:
    with kit.running() as running:
        rows = figures(peers, LIVE, functools.partial(on_kit, kit=running), print)
    return {"live": rows, "kit": f"{running.model} on {running.engine}"}


def _live(peers: Sequence[Peer], options: argparse.Namespace) -> tuple[Row, ...]:
    server = Server(options.base_url.rstrip("/"), options.model, options.tokenizer, options.dialect)
    return tuple(live(peer, LIVE[0], server) for peer in peers)


def _show(receipt: Receipt) -> None:
    shown = ((receipt.rows, table), (receipt.costs, cost_table), (receipt.live, live_table))
    for text in [write(receipt) for part, write in shown if part]:
        print("", text, sep="\n")
    print(cost_verdict(receipt, ours.PEER.name) or "")
    for where, rows in (("scripted server", receipt.rows), ("real server", receipt.live)):
        for name, (bad, all_) in wrong(rows).items():
            print(f"{name}, {where}: {bad} of {all_} figures wrong")


if __name__ == "__main__":
    sys.exit(main())
