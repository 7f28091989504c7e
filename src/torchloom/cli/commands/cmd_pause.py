"""`loom pause`: pause all ranks of a job at one step."""

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs.control import WAIT, ask, checkpoint_in_words, show_outcome
from torchloom.cli.output import echo

_UNSAVED = "the program saved no checkpoint at that step: `loom checkpoint ls` lists earlier ones"


@click.command(
    "pause",
    cls=LoomCommand,
    epilog=examples(
        'loom pause gpt --reason "inspect the data"',
        "loom pause gpt --release    # its devices are free until `loom resume`",
    ),
)
@click.argument("job", required=False, default="")
@click.option("--release", is_flag=True, help="Save, end the ranks and release their devices.")
@click.option("--at", type=Number(0), metavar="STEP", help="Earliest step to pause at.")
@click.option("--reason", default="", metavar="WHY", help="Recorded in the audit log.")
@click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help=WAIT)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    job: str, release: bool, at: int | None, reason: str, wait: float | None, as_json: bool
) -> None:
    """Pause all ranks of JOB before the same step; `loom resume` continues them.

    The job keeps its processes and devices. With --release the ranks save at that step and end,
    their devices become free, and `loom resume` queues the job again. JOB defaults to the only
    active job.
    """
    request = {"reason": reason, "at": at, "release": release or None, "wait": wait}
    outcome = ask("pause", job=job, **request)
    show_outcome(outcome, as_json)
    if release and not as_json and outcome["after"] == "PAUSED":
        made = outcome["checkpoint"]
        echo(checkpoint_in_words(made) if made else _UNSAVED)
