"""The server process of the local kit: llama.cpp's own HTTP server from the `xllamacpp` wheel.

Run as `python -m cluster.engines.llama_server --model PATH ...`; the API key comes from the environment variable
LLAMA_API_KEY, never from an argument. Ends with 1 when the model cannot be loaded or the port cannot be bound.
"""

from __future__ import annotations

import argparse
import os
import signal


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="model id that requests name")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens per request")
    parser.add_argument("--parallel", type=int, required=True, help="requests decoded at the same time")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--speculation", choices=("ngram", "none"), required=True)
    parser.add_argument("--draft-tokens", type=int, default=7)
    parser.add_argument("--match-tokens", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    """Serve until a signal ends the process."""
    args = _arguments()
    # Waiting OpenMP threads must not spin: on contended cores that costs 50 times the throughput (measured with two threads).
    os.environ.update(OMP_NUM_THREADS=str(args.threads), GOMP_SPINCOUNT="0")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = {args.alias}
    params.hostnames, params.port = [args.host], args.port
    params.endpoint_metrics, params.ui = True, False
    params.n_parallel, params.n_ctx = args.parallel, args.context * args.parallel
    # Between batches the server sees new requests, and that a client has gone. Its default of 2048 prompt tokens are some 15 s on one
    # busy core, in which it answers nobody; it computes 512 at a time anyway.
    params.n_batch = params.n_ubatch = 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.api_keys = [key] if (key := os.environ.get("LLAMA_API_KEY")) else []
    speculation = xllamacpp.common_speculative_type
    if args.speculation == "ngram":
        params.speculative.types = [speculation.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_m = args.draft_tokens
        params.speculative.ngram_simple.size_n = args.match_tokens
    server = xllamacpp.Server(params)
    print(f"serving on {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
