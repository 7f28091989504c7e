"""`loom checkpoint diff`: which tensors of two checkpoints differ, and by how much."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from torchloom.cli.checkpoints.inventory import (
    StoredCheckpoints,
    job_and_steps,
    kept,
    size,
    step_named,
)
from torchloom.cli.command import LoomCommand
from torchloom.cli.jobs.control import shown
from torchloom.cli.output import echo, echo_json, table
from torchloom.errors import UserError

_ENDINGS = (".pt", ".safetensors")
_MOST = 20  # plain values that are shown; --json has all


@click.command("export", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="[JOB] [STEP]")
@click.option(
    *("-o", "--output", "file"),
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="model.pt or model.safetensors.",
)
@click.option("--optimizer", is_flag=True, help="With optimizers and what else was tracked.")
@click.option("-y", "--yes", is_flag=True, help="Replace FILE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def export(words: tuple[str, ...], file: Path, optimizer: bool, yes: bool, as_json: bool) -> None:
    """Write the model of the checkpoint of STEP, or of the newest, into one FILE.

    A .pt file is read with torch.load(FILE, weights_only=True): the model's state dict.
    """
    from torchloom.cli.checkpoints import torch_process

    job, numbers = job_and_steps(words, 1)
    path = file.absolute()
    if path.suffix not in _ENDINGS:
        raise UserError(f"{file}: what kind of file? write a name that ends in .pt or .safetensors")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it first")
    if path.is_dir() or (path.exists() and not yes):
        raise UserError(f"{file} is there already; --yes replaces it, or choose another name")
    found = kept(job, "export")
    step = found.step(numbers[0] if numbers else None)
    facts = {"root": found.storage.root, "step": step, "job": found.job, "file": str(path)}
    told = torch_process.ask(
        "export", found.record, {**facts, "optimizer": optimizer, "replace": yes}
    )
    whole = {"job": found.job, "step": step, "file": str(path), **told}
    if as_json:
        echo_json(whole)
    else:
        echo(
            f"step {step} of {found.job}: {told['tensors']} tensors, {size(told['bytes'])}: {file}"
        )


@click.command("diff", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="[JOB] A B")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def diff(words: tuple[str, ...], as_json: bool) -> None:
    """Compare two checkpoints tensor by tensor, each a STEP of JOB or JOB:STEP.

    Exit code 0 whether they differ or not.
    """
    from torchloom.cli.checkpoints import torch_process

    (left, a), (right, b) = sides(words)
    roots = [{"root": one.storage.root, "step": step} for one, step in ((left, a), (right, b))]
    found = torch_process.ask("diff", left.record, {"a": roots[0], "b": roots[1]})
    told = {"a": {"job": left.job, "step": a}, "b": {"job": right.job, "step": b}, **found}
    if as_json:
        echo_json(told)
    else:
        for line in _in_words(told):
            echo(line)


def sides(words: Sequence[str]) -> list[tuple[StoredCheckpoints, int]]:
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
