"""`loom checkpoint`: save a checkpoint of a running job; list, check and remove checkpoints."""

from typing import Any

import click

from torchloom.cli.checkpoints.inventory import ls, rm, verify
from torchloom.cli.checkpoints.tensors import diff, export
from torchloom.cli.command import HELP, LoomCommand, LoomGroup, Number, examples
from torchloom.cli.jobs.control import WAIT, ask, checkpoint_in_words, show_outcome
from torchloom.cli.output import echo, echo_json
from torchloom.errors import Failure

_EXAMPLES = examples(
    "loom checkpoint gpt", "loom checkpoint gpt --at 5000 --no-wait", "loom checkpoint ls gpt"
)


class CheckpointFailed(Failure):
    """The checkpoint was not committed."""

    code = "checkpoint_failed"


@click.command("checkpoint", cls=LoomCommand, epilog=_EXAMPLES)
@click.argument("job", required=False, default="")
@click.option("--at", type=Number(0), metavar="STEP", help="Earliest step to save at.")
@click.option("--reason", default="", metavar="WHY", help="Recorded in the audit log.")
@click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help=WAIT)
@click.option("--no-wait", is_flag=True, help="Do not wait for the commit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def save(
    job: str, at: int | None, reason: str, wait: float | None, no_wait: bool, as_json: bool
) -> None:
    """Save a checkpoint of JOB: all ranks save before the same step. Waits for the commit.

    JOB defaults to the only active job.
    """
    outcome = ask("checkpoint", job=job, at=at, reason=reason, wait=0.0 if no_wait else wait)
    made = outcome.get("checkpoint")
    if as_json:
        echo_json(outcome)
    elif made:
        echo(checkpoint_in_words(made))
    else:
        show_outcome(outcome, as_json)
    if made and made["state"] == "failed":
        raise CheckpointFailed(f"the checkpoint of step {made['step']} failed: {made['reason']}")


class _Checkpoint(LoomGroup):
    """A group whose first word is either a subcommand or the job to save."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the words as a subcommand, or as `checkpoint [JOB]`."""
        if args and (args[0] in self.commands or args[0] in HELP):
            return super().make_context(info_name, args, parent, **extra)
        return save.make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, or `save`."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.group(
    "checkpoint",
    cls=_Checkpoint,
    epilog=_EXAMPLES,
    params=[each for each in save.params if isinstance(each, click.Option)],
    subcommand_metavar="[JOB] | COMMAND ...",
)
def command(**_: Any) -> None:
    """Save a checkpoint of JOB: all ranks save before the same step. Waits for the commit.

    JOB defaults to the only active job. If the name of a job is also a command below, give its id.
    """


for _one in (ls, verify, diff, export, rm):
    command.add_command(_one)
