"""Long varied text of our own: the log of a small harbour, endless and always the same for the same seed.

Filler that repeats one word is no prompt: drafters, caches and expert routing all find it easier than text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_WHO = (
    "Asta", "Bruno", "Chandra", "Delia", "Emeka", "Fumiko", "Goran", "Hana", "Ismail", "Jorun", "Kofi", "Lena", "Mateo", "Nadia", "Oskar",
    "Priya", "Quentin", "Rosa", "Sami", "Tove", "Ulla", "Viktor", "Wanda", "Yusuf", "Zelda", "the pilot", "the smith", "the customs clerk",
)  # fmt: skip
_SHIPS = (
    "Petrel", "Windlass", "Old Anchor", "Kittiwake", "Silver Thread", "Wayfarer", "Marigold", "Northern Diver", "Cinnamon", "Heron",
    "Patience", "Two Sisters", "Blue Kettle", "Halcyon", "Lodestar", "Merganser", "Quicksilver", "Rosemary", "Sea Holly", "Tern",
)  # fmt: skip
_CARGO = (
    "crates of apples", "barrels of tar", "coils of rope", "drums of paint", "casks of vinegar", "sacks of lime", "reels of copper wire",
    "boxes of lamp glass", "bundles of cedar planks", "bales of wool", "jars of honey", "rolls of sailcloth", "kegs of nails",
    "baskets of oysters", "stacks of roof tiles", "chests of tea", "tubs of salted herring", "pallets of bricks", "cases of ink",
)  # fmt: skip
_PLACES = (
    "berth 1", "berth 2", "berth 3", "berth 4", "berth 5", "berth 6", "berth 7", "berth 8", "berth 9", "the slip", "the north mole",
    "the crane", "the ice house", "the rope walk", "the weigh house", "the signal mast", "the fish market", "the dry dock", "the old quay",
)  # fmt: skip
_WEATHER = (
    "fog until ten, then clear", "hard frost on the planks", "a falling glass and high cloud", "gusts from the south-west",
    "rain all day", "low sun and a long swell", "bright and nearly still", "sleet before noon", "a warm haze", "thunder far out at sea",
    "a steady breeze from the west", "the first swallows", "a ring around the moon", "drizzle that never quite stopped",
)  # fmt: skip
_THINGS = (
    "a new pawl", "two fathoms of chain", "the spare rudder pin", "a pot of red lead", "the brass lantern", "a length of hose",
    "the tide gauge", "the long ladder", "a box of flares", "the second ledger", "a dozen fenders", "the winch handle", "a splicing fid",
)  # fmt: skip
_DEEDS = (
    "mended",
    "borrowed",
    "counted",
    "oiled",
    "misplaced",
    "repainted",
    "weighed",
    "lent out",
    "found",
    "measured",
    "sketched",
    "tarred",
)
_REASONS = (
    "because the old one had split", "for the third time this month", "against the advice of the board", "so that the ferry could turn",
    "while the tide was still making", "before anybody had lit the lamps", "as the insurance now demands", "to settle a wager",
    "although nobody had asked for it", "since the regatta is only weeks away", "after the gulls had opened the last sack",
)  # fmt: skip
_HOW = (
    "battered", "new", "borrowed", "heavy", "rusty", "green", "crooked", "well-oiled", "second-best", "salt-stained", "dented", "blue",
    "half-empty", "spotless", "narrow", "wet", "cheap", "forgotten", "sturdy", "brittle", "polished", "striped", "uneven", "faded",
    "patched", "cold", "smoking", "quiet", "famous", "doubtful", "long-awaited", "leaking", "sealed", "hollow", "crowded", "early",
)  # fmt: skip
_ADVERBS = (
    "slowly", "twice", "in secret", "at dawn", "with a grin", "by mistake", "out of habit", "against orders", "by lamplight", "in a hurry",
    "for practice", "without a word", "on principle", "left-handed", "under protest", "in pairs", "before supper", "from memory",
    "at low water", "in the rain", "to everyone's surprise", "after a long argument", "with borrowed tools", "on the second attempt",
)  # fmt: skip
_PEOPLE = (
    "fishermen", "surveyors", "children", "painters", "auditors", "divers", "sailmakers", "carters", "musicians", "tourists", "students",
    "coopers", "net menders", "ferrymen", "bakers", "inspectors", "botanists", "welders", "apprentices", "pensioners", "photographers",
)  # fmt: skip
_WANTS = (
    "asked for shade", "counted the gulls", "waited for the ferry", "argued about knots", "sang until the lamps were lit",
    "lost a hat to the wind", "measured the swell", "sold maps", "praised the soup", "complained of the smell", "drew the skyline",
    "helped to unload", "fell asleep on the nets", "looked for a missing dog", "traded buttons for bait", "rehearsed a rescue",
    "wrote letters home", "blamed the council", "bought all the rope", "tested the echo", "mistook the customs house for an inn",
)  # fmt: skip
_SENTENCES = (
    "{n} {people} {wants} at {place}, {adverb}, and left {k} coins and a {how} umbrella.",
    "A {how} crate and a {how2} one were exchanged {adverb}; {who} noticed only after {k} days.",
    "The {how} {people} from the {ship} {wants} while {who} {deed} {thing} {adverb}.",
    "{who} bought {n} {how} {cargo} at {k} coins each and sold {m} of them {adverb}.",
    "Nobody {deed} the {how} lamp at {place}, so {who} did it {adverb} {reason}.",
    "Two {people} {wants} {reason}, and the {how} bell of the {ship} rang {k} times.",
    "The {ship} came in at {h}:{m} and landed {n} {cargo} at {place}.",
    "The {ship} left {place} at {h}:{m}, {n} hands aboard, bound for the islands.",
    "{who} {deed} {thing} near {place} {reason}.",
    "{who} and {who2} disagreed about {thing} and will look at it again in {k} days.",
    "Dues of {n} coins were paid by the {ship}, {k} fewer than the ledger said.",
    "A seal slept on {place} until {who} moved it on with {k} herring.",
    "Of {n} {cargo}, {k} were damp, and {who} set them apart {reason}.",
    "The gauge at {place} read {n} centimetres at {h}:{m}, which {who} took down twice.",
    "Two visitors asked {who} for the way to {place} and were drawn a map.",
    "It was {who}'s turn to keep the lamp; it burned {k} hours and {m} minutes.",
    "{who} wants {thing} moved to {place} {reason}.",
    "The diver went down at {place} for {m} minutes and brought up {thing}.",
)


def words(seed: int) -> Iterator[str]:
    """The log's words one after another, without end; a new day begins with a new line (the word starts with a line end)."""
    rng = random.Random(f"harbour log {seed}")
    day = 0
    while True:
        day += 1
        first, then = rng.sample(_WEATHER, 2)
        text = f"\nDay {day}. Weather: {first}, {rng.randint(-9, 31)} degrees at noon, later {then}."
        text += "".join(f" {_sentence(rng)}" for _ in range(rng.randint(3, 6)))
        yield from text.split(" ")


def _sentence(rng: random.Random) -> str:
    who, who2 = rng.sample(_WHO, 2)
    names = {"who": who, "who2": who2, "ship": rng.choice(_SHIPS), "cargo": rng.choice(_CARGO), "place": rng.choice(_PLACES)}
    more = {"thing": rng.choice(_THINGS), "deed": rng.choice(_DEEDS), "reason": rng.choice(_REASONS)}
    how, how2 = rng.sample(_HOW, 2)
    more |= {"how": how, "how2": how2, "adverb": rng.choice(_ADVERBS), "people": rng.choice(_PEOPLE), "wants": rng.choice(_WANTS)}
    numbers = {"h": rng.randint(4, 22), "m": f"{rng.randint(0, 59):02}", "n": rng.randint(11, 480), "k": rng.randint(2, 10)}
    text = rng.choice(_SENTENCES).format(**names, **more, **numbers)
    return text[0].upper() + text[1:]


def compose(seed: int, count: int, task: str) -> str:
    """The first `count` words of log number `seed`, then the task; the task alone for none."""
    if count <= 0:
        return task
    log = " ".join(word for word, _ in zip(words(seed), range(count), strict=False))
    return f"Below is the log of a small harbour.\n{log}\n\n{task}"


def edited(text: str, share: float) -> str:
    """`text` with one word put in after `share` of its words: what comes before stays the same, what comes after moves."""
    parts = text.split(" ")
    at = int(len(parts) * share)
    return " ".join([*parts[:at], "(corrected)", *parts[at:]])
