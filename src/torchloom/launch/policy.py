"""What a job wants when something fails, as people write it: `restart`, `shrink,min=2,nan=fail`."""

from collections.abc import Mapping

from torchloom.launch.values import BadValue

# What `rules.response` understands; spelled here, since a launch must start fast.
RECOVERIES = ("live", "restart", "shrink", "fail")
ON_LOSS = ("notify", "restart", "fail")

Wishes = Mapping[str, str | int]  # by name of a field of `rules.response.Policy`


def policy(flag: str, said: str) -> str:
    """Read a policy and return it as it was written; what makes no sense is refused."""
    wishes(said, flag)
    return said


def wishes(said: str, flag: str = "policy") -> Wishes:
    """Return what a written policy asks for."""
    found: dict[str, str | int] = {}
    for word in filter(None, (part.strip() for part in said.split(","))):
        name, value = _wish(word, flag)
        if name in found:
            raise BadValue(flag, said, f"{word!r} is one word too many")
        found[name] = value
    if "min_groups" in found and found.get("recovery") != "shrink":
        raise BadValue(flag, said, "min=N goes with shrink")
    return found


def in_words(wishes: Wishes) -> str:
    """Return a policy as one writes it."""
    names = {"recovery": "", "min_groups": "min=", "on_loss": "nan="}
    return ",".join(f"{names[name]}{wishes[name]}" for name in names if name in wishes)


def _wish(word: str, flag: str) -> tuple[str, str | int]:
    name, equals, value = word.partition("=")
    if not equals and name in RECOVERIES:
        return "recovery", name
    if name == "nan" and value in ON_LOSS:
        return "on_loss", value
    if name == "min" and value.isascii() and value.isdecimal() and 0 < int(value) < 1 << 31:
        return "min_groups", int(value)
    raise BadValue(
        flag, word, f"write one of {', '.join(RECOVERIES)}, and nan={'|'.join(ON_LOSS)}, min=N"
    )
