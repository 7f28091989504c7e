"""`loom checkpoint export`: the whole model of a checkpoint in one file."""

from pathlib import Path

import click

from torchloom.cli.checkpoints.stores import job_and_steps, kept, size
from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json
from torchloom.errors import UserError

_ENDINGS = (".pt", ".safetensors")


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
    from torchloom.cli.checkpoints import torchside

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
    told = torchside.ask("export", found.record, {**facts, "optimizer": optimizer, "replace": yes})
    whole = {"job": found.job, "step": step, "file": str(path), **told}
    if as_json:
        echo_json(whole)
    else:
        echo(
            f"step {step} of {found.job}: {told['tensors']} tensors, {size(told['bytes'])}: {file}"
        )
