"""`loom checkpoint diff`: which tensors of two checkpoints differ, and by how much."""

from collections.abc import Sequence
from typing import Any

import click

from torchloom.cli.checkpoints.stores import Kept, kept, step_named
from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json, table
from torchloom.cli.steering import shown
from torchloom.errors import UserError

_MOST = 20  # plain values that are shown; --json has all


@click.command("diff", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="[JOB] A B")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def diff(words: tuple[str, ...], as_json: bool) -> None:
    """Compare two checkpoints tensor by tensor, each a STEP of JOB or JOB:STEP.

    Exit code 0 whether they differ or not.
    """
    from torchloom.cli.checkpoints import torchside

    (left, a), (right, b) = sides(words)
    roots = [{"root": one.storage.root, "step": step} for one, step in ((left, a), (right, b))]
    found = torchside.ask("diff", left.record, {"a": roots[0], "b": roots[1]})
    told = {"a": {"job": left.job, "step": a}, "b": {"job": right.job, "step": b}, **found}
    if as_json:
        echo_json(told)
    else:
        for line in _in_words(told):
            echo(line)


def sides(words: Sequence[str]) -> list[tuple[Kept, int]]:
    """Read `A B`, `JOB A B` or `JOB:A JOB:B`; a side without a job has the other's."""
    job, pair = (words[0], words[1:]) if len(words) == 3 else ("", words)
    if len(pair) != 2:
        raise UserError("name two checkpoints: `JOB 100 200`, or `JOB:100 OTHER:100`")
    named = [(word.rpartition(":")[0] or job, step_named(word.rpartition(":")[2])) for word in pair]
    some = next((name for name, _ in named if name), "")
    stores = {name: kept(name, "diff") for name in {name or some for name, _ in named}}
    return [(stores[name or some], stores[name or some].step(step)) for name, step in named]


def _in_words(told: dict[str, Any]) -> list[str]:
    differing, same = told["tensors"], told["same"]
    if not differing and not told["values"] and not told["only_a"] and not told["only_b"]:
        return [f"no difference: all {same} tensors have the same bits"]
    many = "1 tensor differs" if len(differing) == 1 else f"{len(differing)} tensors differ"
    lines = [f"{many}, {same} have the same bits"]
    if differing:
        heads = ("TENSOR", "SHAPE", "MAX DIFFERENCE", "RELATIVE", "ELEMENTS")
        lines.append(table(heads, map(_row, differing)))
    for side, names in (("first", told["only_a"]), ("second", told["only_b"])):
        lines += [f"only in the {side}: {name}" for name in names]
    values = told["values"]
    lines += [f"{one['name']}: {shown(one['a'])} -> {shown(one['b'])}" for one in values[:_MOST]]
    if len(values) > _MOST:
        lines.append(f"and {len(values) - _MOST} more values; --json has them all")
    return lines


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, one["shape"])) or "1"
    if one["why"]:
        return one["name"], shape, one["why"], "", ""
    most, relative = (
        "nan" if one[name] is None else f"{one[name]:.3g}" for name in ("max_abs", "relative")
    )
    return one["name"], shape, most, relative, f"{one['changed']} of {one['elements']}"
