"""Runs inside vLLM's own environment: chat requests as JSON texts on stdin, the keys that vLLM 0.32 does not know of each on stdout."""

# mypy: ignore-errors

import json
import sys

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest


def main() -> None:
    found = []
    for text in json.load(sys.stdin):
        request = ChatCompletionRequest.model_validate(json.loads(text))  # a value of a wrong type ends the process
        found.append(sorted(request.model_extra or {}))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
