"""`"tool_choice": "none"` beside tools: the model may not begin a tool call. vLLM lets it, and then drops the call: an empty answer."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "GLM53_TOOL_CHOICE_NONE=0"
EXPECTED = "7eebb0557f7a5ab7"
OPENING = "TOOL_START"


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "GLM53_TOOL_CHOICE_NONE", "1")


def apply(environment: Mapping[str, str]) -> None:
    from vllm.parser.engine.parser_engine import ParserEngine

    guard.replace(ParserEngine, "adjust_request", EXPECTED, SWITCH, without_calls)


def without_calls(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Where the parser knows calls by their opening token (GLM, Qwen), that token is made a bad word of the request.

    Requests of /v1/responses carry no bad words, and stay as they are.
    """

    def adjust_request(self: Any, request: Any) -> Any:
        request = original(self, request)
        opening = self.parser_engine_config.token_id_terminals.get(OPENING)
        if opening and getattr(request, "tools", None) and request.tool_choice == "none" and hasattr(request, "bad_words"):
            request.bad_words = list(dict.fromkeys([*request.bad_words, opening]))
        return request

    return adjust_request
