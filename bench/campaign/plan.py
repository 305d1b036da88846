"""A plan: which arms boot in which order, what is measured at each boot, and by which rules the comparison will be decided.

Sealed like a receipt: an edited plan is refused, and every receipt of the campaign carries the seal of its plan.
"""

from __future__ import annotations

import datetime
import json
import random
import secrets
from pathlib import Path
from typing import Literal

import pydantic

from bench.errors import BadRequest, InvalidMeasurement
from bench.phases.names import DECODE
from bench.receipt import seal_of, shown
from bench.sealed import document
from bench.trace import Fact

SCHEMA: Literal["spark-lab/plan/v1"] = "spark-lab/plan/v1"
Test = Literal["free", "block"]
CONTROL_SUFFIX = "-control"
# What an arm may differ from itself by before the set-up counts as unfit to tell arms apart; phases not named: OTHER_TOLERANCE.
TOLERANCE = {"structured": 0.015, "prose": 0.04}
OTHER_TOLERANCE = 0.04


class Arm(Fact):
    """A configuration: setting name -> value, over those of the kit. control_of: the arm that it repeats (A/A control)."""

    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")
    settings: dict[str, str]
    control_of: str | None = None


class Work(Fact):
    """What every boot measures. runs: measured requests per prompt. max_tokens None: each workload's own.

    concurrency: one receipt for each number of lanes, empty = the phase's own; each is an endpoint of its own.
    """

    phases: tuple[str, ...] = pydantic.Field(min_length=1)
    runs: int = pydantic.Field(ge=1)
    max_tokens: int | None = pydantic.Field(ge=1)
    concurrency: tuple[int, ...] = ()


class Rules(Fact):
    """How the comparison is decided; shares are fractions. primary: the phases whose difference is tested (Holm over them).

    margin: how much slower B may be and still pass. control_tolerance: phase -> how far the control may be from its twin.
    """

    primary: tuple[str, ...] = pydantic.Field(min_length=1)
    margin: float = pydantic.Field(gt=0, lt=1)
    alpha: float = pydantic.Field(gt=0, lt=1)
    control_tolerance: dict[str, float]


class Body(Fact):
    """A plan without its seal. order: the arm of each slot; blocks: the block of each slot; test: what may be permuted.

    test free: over all boots; its validity rests on boots being exchangeable, and ABBA makes it conservative under drift and
    positive autocorrelation (results/calibration). test block: inside blocks, whose order was drawn from every possible one, so
    the test is exact whatever the boots' drift or correlation, by the drawing alone.
    """

    plan: Literal["spark-lab/plan/v1"] = SCHEMA
    id: str
    created_utc: str
    seed: int
    kit: str
    arms: tuple[Arm, ...] = pydantic.Field(min_length=2)
    boots: int = pydantic.Field(ge=1)
    test: Test
    order: tuple[str, ...]
    blocks: tuple[int, ...]
    work: Work
    rules: Rules

    @property
    def pair(self) -> tuple[str, str]:
        """The baseline and the candidate."""
        first, second = (arm.name for arm in self.arms if arm.control_of is None)
        return first, second

    @property
    def control(self) -> Arm | None:
        return next((arm for arm in self.arms if arm.control_of), None)

    def arm(self, slot: int) -> Arm:
        return next(arm for arm in self.arms if arm.name == self.order[slot])

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Body:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names) or sum(arm.control_of is None for arm in self.arms) != 2:
            raise ValueError("a plan compares two arms with different names")
        if sorted(self.order) != sorted(names * self.boots) or len(self.blocks) != len(self.order):
            raise ValueError("the order does not hold every arm the stated number of times")
        if not set(self.rules.primary) <= set(self.work.phases):
            raise ValueError("a primary phase is not measured")
        return self


class Plan(Body):
    """A sealed plan."""

    seal: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")


def order(arms: list[str], boots: int, test: Test, seed: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The arm and the block of each slot.

    free: ABBA BAAB ... with a random start (three arms: ABCCBA BCAACB): the mean position of every arm is the same in each full
    block, so a linear drift cancels. block: twice each arm in a block, in an order drawn from all. An odd number of boots ends
    with one block that holds each arm once.
    """
    rng = random.Random(seed)
    lead = rng.sample(arms, len(arms))
    slots: list[str] = []
    blocks: list[int] = []
    for block in range((boots + 1) // 2):
        turn = lead[block % len(lead) :] + lead[: block % len(lead)]
        both = 2 * block + 2 <= boots
        if test == "free":
            part = [*turn, *(turn[::-1] if both else [])]
        else:
            part = rng.sample([*arms, *(arms if both else [])], len(arms) * (1 + both))
        slots += part
        blocks += [block] * len(part)
    return tuple(slots), tuple(blocks)


class Wanted(Fact):
    """What to plan; see Body for the fields. control: repeat the first arm as an A/A control."""

    kit: str
    arms: tuple[Arm, Arm]
    boots: int
    work: Work
    primary: tuple[str, ...]
    margin: float
    test: Test = "free"
    control: bool = False
    seed: int | None = None


def make(wanted: Wanted) -> Plan:
    """The sealed plan, its order drawn now. Raises BadRequest for what no plan can be made of."""
    _refuse(wanted)
    seed = secrets.randbits(32) if wanted.seed is None else wanted.seed
    first = wanted.arms[0]
    twin = Arm(name=first.name + CONTROL_SUFFIX, settings=first.settings, control_of=first.name)
    arms = (*wanted.arms, *((twin,) if wanted.control else ()))
    slots, blocks = order([arm.name for arm in arms], wanted.boots, wanted.test, seed)
    now = datetime.datetime.now(datetime.UTC)
    body = Body(
        id=f"{now:%Y%m%d}-{wanted.kit}-{arms[0].name}-vs-{arms[1].name}-{secrets.token_hex(3)}",
        created_utc=now.isoformat(timespec="seconds"),
        seed=seed,
        kit=wanted.kit,
        arms=arms,
        boots=wanted.boots,
        test=wanted.test,
        order=slots,
        blocks=blocks,
        work=wanted.work,
        rules=Rules(
            primary=wanted.primary,
            margin=wanted.margin,
            alpha=0.05,
            control_tolerance={phase: TOLERANCE.get(phase, OTHER_TOLERANCE) for phase in wanted.work.phases},
        ),
    )
    plain = body.model_dump(mode="json")
    return Plan.model_validate({**plain, "seal": seal_of(plain)})


def _refuse(wanted: Wanted) -> None:
    unknown = [phase for phase in wanted.work.phases if phase not in DECODE]  # one figure for each boot
    if unknown:
        raise BadRequest(f"phase '{unknown[0]}' cannot be planned; these can: {', '.join(DECODE)}")
    stray = [phase for phase in wanted.primary if phase not in wanted.work.phases]
    if stray:
        raise BadRequest(f"--primary {stray[0]} is not among the phases {', '.join(wanted.work.phases)}")
    if wanted.arms[0].name == wanted.arms[1].name:
        raise BadRequest(f"both arms are called {wanted.arms[0].name}")
    if wanted.arms[0].settings == wanted.arms[1].settings:
        raise BadRequest("both arms have the same settings: there is nothing to compare\ntry: --set ARM:NAME=VALUE")
    least = 5 if wanted.test == "block" else 4
    if wanted.boots < least:
        raise BadRequest(f"--boots {wanted.boots}: with test {wanted.test}, no difference reaches p = 0.05 below {least} boots per arm")


def write(plan: Plan, path: Path) -> None:
    """Write the plan; an existing file is never overwritten. Raises BadRequest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(document(plan.model_dump(mode="json")))
    except FileExistsError:
        raise BadRequest(f"{shown(path)} exists; a plan is never overwritten\ntry: another --out") from None


def read(path: Path) -> Plan:
    """The plan at `path` (the file, or its folder). Raises InvalidMeasurement when it is malformed or was edited."""
    path = path / "plan.json" if path.is_dir() else path
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        plan = Plan.model_validate_json(json.dumps(plain))
    except FileNotFoundError:
        raise BadRequest(f"no plan at {shown(path)}\ntry: invoke bench-plan") from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "plan"
        raise InvalidMeasurement(f"{shown(path)}: field {field}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable as JSON: {error}") from error
    if plan.seal != seal_of(plain):
        raise InvalidMeasurement(f"{shown(path)}: field seal: the plan was edited after it was made; a changed plan is another plan")
    return plan
