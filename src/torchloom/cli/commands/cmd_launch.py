"""`loom launch`: start the ranks of a command in the foreground, like torchrun."""

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand
from torchloom.launch.grammar.parser import OURS, TORCHRUN, HelpAsked, Option
from torchloom.settings import environment


class LaunchVerb(LoomCommand):
    """The verb parsed by the launch's own grammar; click only prints its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words into a `LaunchCommand`, or print help."""
        try:
            ctx.params["asked"] = LaunchCommand.parse(args, environment())
        except HelpAsked:
            is_torchrun = args[:1] == [AS_TORCHRUN]
            click.echo(TORCHRUN.usage() if is_torchrun else ctx.get_help())
            ctx.exit()
        return []


def _shown(option: Option) -> click.Option:
    return click.Option(
        [*option.names, option.field or option.names[-1].strip("-").replace("-", "_")],
        help=option.help,
        metavar=option.metavar or None,
        is_flag=not option.metavar,
        hidden=option.hidden,
    )


def _params() -> list[click.Parameter]:
    """Return the option table as click parameters, for the help text only."""
    named = [option for option in OURS.options if option.names and option.field != "help"]
    return [
        *map(_shown, named),
        click.Argument(["words"], nargs=-1, metavar="COMMAND [ARGS]..."),
    ]


@click.command(
    "launch",
    cls=LaunchVerb,
    params=_params(),
    epilog=examples(
        "loom launch -n 4 train.py --lr 0.1",
        "loom launch --nproc_per_node 4 --max_restarts 2 -m pkg.train",
        "loom launch -n 8 --launcher mpiexec -x NCCL_DEBUG -- python train.py",
    ),
)
def command(asked: LaunchCommand) -> int:
    """Start the ranks of COMMAND and wait until they end.

    Accepts the options and PET_ variables of torchrun, and the options of ezpz. Unknown options
    before `--` are passed to the native launcher. The ranks end when this command ends, by
    Ctrl-C or otherwise.
    """
    from torchloom.cli.launch import launch

    return launch(asked)
