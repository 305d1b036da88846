"""Runs inside vLLM's own environment: command lines as JSON on stdin, what vLLM 0.32 makes of each as JSON on stdout."""

import dataclasses
import json
import sys

from vllm.config.speculative import SpeculativeConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    found = []
    for words in json.load(sys.stdin):
        args = parser.parse_args(words[1:])  # ends the process with 2 for a flag it does not know
        ToolParserManager.get_tool_parser(args.tool_call_parser)
        ReasoningParserManager.get_reasoning_parser(args.reasoning_parser)
        strange = sorted(set(args.speculative_config or {}) - known)
        found.append({"model": args.model_tag, "rank": args.node_rank, "headless": args.headless, "strange": strange})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
