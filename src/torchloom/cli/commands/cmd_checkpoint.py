"""`loom checkpoint`: have all ranks of a job save at one step; look after what was saved."""

from typing import Any

import click

from torchloom.cli.checkpoints.inventory import ls, rm, verify
from torchloom.cli.checkpoints.tensors import diff, export
from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.jobs.control import WAIT, ask, tell
from torchloom.cli.output import echo, echo_json
from torchloom.errors import Failure

_HELP = ("-h", "--help")


class CheckpointFailed(Failure):
    """All ranks were asked to save, and it came to nothing."""

    code = "checkpoint_failed"


@click.command("checkpoint", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("--at", type=Number(0), metavar="STEP", help="Not before this step.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the command.")
@click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help=WAIT)
@click.option("--no-wait", is_flag=True, help="Do not wait until it is committed.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def save(
    job: str, at: int | None, reason: str, wait: float | None, no_wait: bool, as_json: bool
) -> None:
    """Have all ranks of JOB save before one and the same step, and wait for the commit.

    Without JOB the only active one is meant.
    """
    wishes = {"at": at, "reason": reason, "wait": 0.0 if no_wait else wait}
    outcome = ask("checkpoint", job=job, **wishes)
    made = outcome.get("checkpoint")
    if as_json:
        echo_json(outcome)
    elif made:
        echo(_in_words(made))
    else:
        tell(outcome, as_json)
    if made and made["state"] == "failed":
        raise CheckpointFailed(f"the checkpoint of step {made['step']} failed: {made['reason']}")


def _in_words(made: dict[str, Any]) -> str:
    what = f"checkpoint of step {made['step']}"
    if made["state"] != "committed":
        return f"{what} is {made['state']}; `loom checkpoint ls` shows when it is committed"
    took = made.get("seconds")
    lasted = (
        "" if took is None else f" in {took * 1000:.0f} ms" if took < 1 else f" in {took:.1f} s"
    )
    return f"{what} committed{lasted}: {made['place']}"


class _Checkpoint(click.Group):
    """A verb whose first word may be one of its own; any other is a job that is to save."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the words as what the first of them says."""
        if args and (args[0] in self.commands or args[0] in _HELP):
            return super().make_context(info_name, args, parent, **extra)
        return save.make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Do what the words were read as."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.group(
    "checkpoint",
    cls=_Checkpoint,
    context_settings={"help_option_names": list(_HELP)},
    params=[each for each in save.params if isinstance(each, click.Option)],
    subcommand_metavar="[JOB] | COMMAND ...",
)
def command(**_: Any) -> None:
    """Have all ranks of JOB save before one and the same step, and wait for the commit.

    Without JOB the only active one is meant. A job that is called as a command below is named by
    its id.
    """


for _one in (ls, verify, diff, export, rm):
    command.add_command(_one)
