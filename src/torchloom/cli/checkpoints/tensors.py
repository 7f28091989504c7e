"""`loom checkpoint diff` and `export`: compare the tensors of checkpoints, export a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from torchloom.cli.checkpoints.inventory import (
    StoredCheckpoints,
    job_and_steps,
    kept,
    require_own,
    size,
    step_named,
)
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.jobs.control import shown
from torchloom.cli.output import echo, echo_json, table
from torchloom.errors import UserError

_ENDINGS = (".pt", ".safetensors")
_MOST = 20  # values that are shown; --json has all


@click.command(
    "export",
    cls=LoomCommand,
    epilog=examples(
        "loom checkpoint export gpt -o model.safetensors",
        "loom checkpoint export gpt 2000 -o model.pt --optimizer",
    ),
)
@click.argument("words", nargs=-1, metavar="[JOB] [STEP]")
@click.option(
    *("-o", "--output", "file"),
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="model.pt or model.safetensors.",
)
@click.option("--optimizer", is_flag=True, help="Include optimizers and other tracked state.")
@click.option("-y", "--yes", is_flag=True, help="Replace an existing FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def export(words: tuple[str, ...], file: Path, optimizer: bool, yes: bool, as_json: bool) -> None:
    """Export the model of a checkpoint to FILE.

    STEP defaults to the newest checkpoint. A .pt file contains the state dict; read it with
    torch.load(FILE, weights_only=True).
    """
    from torchloom.cli.checkpoints import torch_process

    job, numbers = job_and_steps(words, 1)
    path = file.absolute()
    if path.suffix not in _ENDINGS:
        raise UserError(f"{file}: the name must end in .pt or .safetensors")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist")
    if path.is_dir() or (path.exists() and not yes):
        raise UserError(f"{file} exists; --yes replaces it, or choose another name")
    found = kept(job, "export")
    step = found.step(numbers[0] if numbers else None)
    require_own(found, step, "checkpoint export")
    facts = {"root": found.storage.root, "step": step, "job": found.job, "file": str(path)}
    done = torch_process.ask(
        "export", found.record, {**facts, "optimizer": optimizer, "replace": yes}
    )
    whole = {"job": found.job, "step": step, "file": str(path), **done}
    if as_json:
        echo_json(whole)
    else:
        echo(
            f"step {step} of {found.job}: {done['tensors']} tensors, {size(done['bytes'])}: {file}"
        )


@click.command(
    "diff",
    cls=LoomCommand,
    epilog=examples(
        "loom checkpoint diff gpt 1000 2000", "loom checkpoint diff gpt-1:1000 gpt-2:1000"
    ),
)
@click.argument("words", nargs=-1, metavar="[JOB] A B")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def diff(words: tuple[str, ...], as_json: bool) -> None:
    """Compare two checkpoints tensor by tensor.

    A and B are each STEP or JOB:STEP. Exits with 0 whether they differ or not.
    """
    from torchloom.cli.checkpoints import torch_process

    (left, a), (right, b) = sides(words)
    for side, step in ((left, a), (right, b)):
        require_own(side, step, "checkpoint diff")
    roots = [{"root": one.storage.root, "step": step} for one, step in ((left, a), (right, b))]
    found = torch_process.ask("diff", left.record, {"a": roots[0], "b": roots[1]})
    whole = {"a": {"job": left.job, "step": a}, "b": {"job": right.job, "step": b}, **found}
    if as_json:
        echo_json(whole)
    else:
        for line in _in_words(whole):
            echo(line)


def sides(words: Sequence[str]) -> list[tuple[StoredCheckpoints, int]]:
    """Parse `A B`, `JOB A B` or `JOB:A JOB:B`; a side without a job uses the other's."""
    job, pair = (words[0], words[1:]) if len(words) == 3 else ("", words)
    if len(pair) != 2:
        raise UserError("name two checkpoints: `JOB 100 200`, or `JOB:100 OTHER:100`")
    named = [(word.rpartition(":")[0] or job, step_named(word.rpartition(":")[2])) for word in pair]
    some = next((name for name, _ in named if name), "")
    stores = {name: kept(name, "diff") for name in {name or some for name, _ in named}}
    return [(stores[name or some], stores[name or some].step(step)) for name, step in named]


def _in_words(found: dict[str, Any]) -> list[str]:
    differing, same = found["tensors"], found["same"]
    if not differing and not found["values"] and not found["only_a"] and not found["only_b"]:
        return [f"no difference: all {same} tensors have the same bits"]
    many = "1 tensor differs" if len(differing) == 1 else f"{len(differing)} tensors differ"
    lines = [f"{many}, {same} have the same bits"]
    if differing:
        heads = ("TENSOR", "SHAPE", "MAX DIFFERENCE", "RELATIVE", "ELEMENTS")
        lines.append(table(heads, map(_row, differing)))
    for side, names in (("first", found["only_a"]), ("second", found["only_b"])):
        lines += [f"only in the {side}: {name}" for name in names]
    values = found["values"]
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
