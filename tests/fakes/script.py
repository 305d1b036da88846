"""What the scripted server is told to do: steps, replies, one scenario. Frozen values, no I/O.

Times are seconds, counts are tokens. `"auto"` means: fill in what the script has really served so far.
`builders` makes the usual scripts; `codec` turns a Scenario into JSON and back.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Auto: TypeAlias = Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Options of every step that sends `choices`. `usage="auto"`: running usage; `timings="auto"`: llama-server's."""

    index: int = 0
    token_ids: Sequence[int] | None = None
    usage: Auto | None = None
    timings: Auto | None = None


@dataclass(frozen=True)
class Wait:
    """Let `s` seconds pass. The waits add up from the arrival of the request, so lateness does not accumulate."""

    s: float


@dataclass(frozen=True)
class Role(Chunk):
    """The opening delta: a role and (by default) an empty content. Holds no token."""

    role: str = "assistant"
    content: str | None = ""


@dataclass(frozen=True)
class Content(Chunk):
    text: str
    tokens: int = 1


@dataclass(frozen=True)
class Reasoning(Chunk):
    text: str
    tokens: int = 1
    field: Literal["reasoning", "reasoning_content"] = "reasoning"


@dataclass(frozen=True)
class ToolCall(Chunk):
    """A piece of tool call number `call`; its name and id are sent where `name` is not None."""

    name: str | None
    arguments_delta: str
    tokens: int = 1
    call: int = 0


@dataclass(frozen=True)
class Finish(Chunk):
    reason: str = "stop"


@dataclass(frozen=True)
class Usage:
    """A usage chunk, `choices: []` unless `with_choices`. `cached=None` leaves `prompt_tokens_details` out."""

    prompt: int | Auto = "auto"
    completion: int | Auto = "auto"
    cached: int | None = None
    with_choices: bool = False


@dataclass(frozen=True)
class TimingsUsage:
    """llama-server's last chunk: `timings`, no `usage`. draft_* are left out where None and the reply has no spec."""

    predicted_n: int | Auto = "auto"
    prompt_n: int | Auto = "auto"
    cache_n: int | Auto = "auto"
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    with_choices: bool = False


@dataclass(frozen=True)
class Comment:
    """An SSE comment line, `: text`: a keep-alive that holds no event."""

    text: str = "keep-alive"


@dataclass(frozen=True)
class Raw:
    """These bytes, verbatim, nothing added. `tokens` says how many tokens they carry."""

    base64: str
    tokens: int = 0

    @classmethod
    def of(cls, data: bytes, tokens: int = 0) -> "Raw":
        return cls(base64.b64encode(data).decode(), tokens)


@dataclass(frozen=True)
class Done:
    """`data: [DONE]`."""


@dataclass(frozen=True)
class Cut:
    """End the connection inside the reply: "reset" = RST (SO_LINGER 0), "close" = FIN without the last HTTP chunk."""

    mode: Literal["reset", "close"] = "reset"


@dataclass(frozen=True)
class Stall:
    """Send nothing until the client leaves or the server stops, but a comment each `comment_every_s` if given."""

    comment_every_s: float | None = None
    comment: str = "keep-alive"


TokenStep: TypeAlias = Content | Reasoning | ToolCall
Step: TypeAlias = Wait | Role | Content | Reasoning | ToolCall | Finish | Usage | TimingsUsage | Comment | Raw | Done | Cut | Stall


@dataclass(frozen=True)
class Spec:
    """By how much one whole reply moves the speculation counters; moved in proportion to the tokens served."""

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_position", tuple(self.per_position))


FRAMING = re.compile(r"event|(bytes|joined):[1-9]\d*|random:\d+")


@dataclass(frozen=True)
class Reply:
    """One answer to POST /v1/chat/completions.

    status 200: `steps`, streamed or (body without `"stream": true`) merged into one JSON. Any other status: `error`
    (object = JSON body, str = text body) and only Waits as steps. `when`: answer only requests whose last user message
    holds this text. `prompt_tokens` and `cached_tokens` are the truth behind "auto" and the counters.
    `foreign_tokens`: generation tokens of somebody else that the counters show. `early_head`: headers go out on
    arrival; else with the first event. Raises ValueError for a script that cannot be played.
    """

    steps: Sequence[Step] = ()
    status: int = 200
    error: Mapping[str, Any] | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    when: str | None = None
    framing: str = "event"
    line_end: Literal["\n", "\r\n"] = "\n"
    early_head: bool = True
    prompt_tokens: int = 10
    cached_tokens: int = 0
    foreign_tokens: int = 0
    spec: Spec | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        if not FRAMING.fullmatch(self.framing):
            raise ValueError(f"framing {self.framing!r}: want event, bytes:N, joined:N or random:SEED")
        if self.line_end not in ("\n", "\r\n"):
            raise ValueError(f"line_end {self.line_end!r}: want \\n or \\r\\n")
        if self.status != 200 and not all(isinstance(step, Wait) for step in self.steps):
            raise ValueError(f"a reply of status {self.status} can hold Wait steps only")
        if any(isinstance(step, Cut | Stall) for step in self.steps[:-1]):
            raise ValueError("Cut and Stall must be the last step")
        for step in self.steps:
            _check_step(step)

    @property
    def tokens(self) -> int:
        """Completion tokens of the whole reply."""
        return sum(step_tokens(step) for step in self.steps)


def step_tokens(step: Step) -> int:
    return step.tokens if isinstance(step, Content | Reasoning | ToolCall | Raw) else 0


def _check_step(step: Step) -> None:
    if isinstance(step, Raw) and not base64.b64decode(step.base64, validate=True):
        raise ValueError("an empty Raw would end the body")
    if step_tokens(step) < 0 or (isinstance(step, Wait) and step.s < 0):
        raise ValueError(f"negative amount in {step}")
    if isinstance(step, Chunk) and step.token_ids is not None:
        object.__setattr__(step, "token_ids", tuple(step.token_ids))
        if len(step.token_ids) != step_tokens(step):
            raise ValueError(f"{len(step.token_ids)} token_ids for {step_tokens(step)} tokens in {step}")


@dataclass(frozen=True)
class Scenario:
    """The whole server.

    Replies with a `when` found in the last user message go first (the first such text in the list wins), else those
    without one; within such a group they are used in order, then `order` says whether the last repeats or all cycle.
    `health`: one status per GET /health, the last repeats. `metrics`: dialect of GET /metrics, None = 404.
    `initial_running`: somebody else's requests, shown for the first `busy_scrapes` scrapes (None = always).
    `engines`: number of engine labels the vLLM counters are spread over. `any_model`: do not check the model name.
    """

    replies: Sequence[Reply]
    models: Sequence[str] = ("test-model",)
    any_model: bool = False
    api_key: str | None = None
    order: Literal["last", "cycle"] = "last"
    health: Sequence[int] = (200,)
    metrics: Literal["vllm", "llamacpp"] | None = "vllm"
    engines: int = 1
    initial_running: int = 0
    initial_waiting: int = 0
    busy_scrapes: int | None = None
    max_model_len: int = 32768

    def __post_init__(self) -> None:
        for name in ("replies", "models", "health"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise ValueError(f"Scenario.{name} is empty")
        if self.order not in ("last", "cycle"):
            raise ValueError(f"order {self.order!r}: want last or cycle")
        if self.metrics not in ("vllm", "llamacpp", None):
            raise ValueError(f"metrics {self.metrics!r}: want vllm, llamacpp or None")
        if self.engines < 1:
            raise ValueError("engines must be 1 or more")
