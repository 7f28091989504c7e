"""`loom env`: a job's variables for another shell, its Python environment for other hosts."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom import settings
from torchloom.cli import shipping
from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import echo_json, say
from torchloom.errors import Failure, NotFound
from torchloom.launch.host.identity import host_name

if TYPE_CHECKING:
    from torchloom.envs.saved import SavedEnv

_PATH = click.Path(path_type=Path)


class _Group(click.Group):
    """A group that knows what is near a word it does not know."""

    command_class = LoomCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise NotFound("env command", args[0], self.commands, "`loom env --help` lists them")
        return super().parse_args(ctx, args)


class _ShellCommand(LoomCommand):
    """A command whose words behind `--` are a command line of their own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@click.group("env", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Save and load a job's variables; pack an environment and push it to hosts."""


@command.command("save")
@click.argument("file", type=_PATH, required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="Every variable, secrets too.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def save(file: Path | None, everything: bool, as_json: bool) -> None:
    """Write this job's variables into FILE (0600), for `loom env load` in a second shell."""
    from torchloom.envs import saved
    from torchloom.envs.saved import choose

    env, own_host = settings.environment(), host_name()
    variables, secrets = choose(env, everything)
    kept = saved.SavedEnv.of(variables, shipping.here(), own_host)
    path = file or saved.folder(settings.loom_home()) / kept.name
    kept.write(path)
    if as_json:
        row = {"file": str(path), "flavour": kept.flavour, "job_id": kept.job_id}
        echo_json(row | {"variables": len(variables), "left_out": secrets})
        return
    click.echo(f"saved {len(variables)} variables: {path}")
    if secrets:
        say(f"left out, by their names or values secret: {', '.join(secrets)}; --all saves them")


@command.command("load")
@click.argument("file", type=_PATH, required=False)
@click.option("--shell", default="bash", metavar="NAME", help="bash, zsh, sh or fish.")
@click.option("--json", "as_json", is_flag=True, help="Print what was saved, as an object.")
def load(file: Path | None, shell: str, as_json: bool) -> None:
    """Print FILE, or what was saved last, as lines for `eval "$(loom env load)"`."""
    from torchloom.envs import saved

    kept = _saved(file)
    if as_json:
        echo_json(kept.to_dict())
        return
    click.echo(os.fsencode(saved.render(kept.variables, shell)), nl=False)
    if odd := saved.unsettable(kept.variables):
        say(f"no shell can set: {', '.join(odd)}; `loom env shell` can")
    if sys.stdout.isatty():
        how = (
            "loom env load --shell fish | source" if shell == "fish" else 'eval "$(loom env load)"'
        )
        say(f"these were only printed; to set them: {how}")


@command.command("shell", cls=_ShellCommand)
@click.argument("file", type=_PATH, required=False)
@click.pass_context
def shell_command(ctx: click.Context, file: Path | None) -> None:
    """Start a shell, or the command behind `--`, with what was saved.

    \b
    loom env shell job.json -- python train.py
    """
    kept = _saved(file)
    own = dict(settings.environment())
    words = ctx.meta["command"] or [own.get("SHELL") or "/bin/sh"]
    try:
        os.execvpe(words[0], words, {**own, **kept.variables})
    except OSError as error:
        text = f"cannot start {words[0]!r}: {error.strerror}; name a command on the saved PATH"
        raise Failure(text) from error


@command.command("pack")
@click.argument("prefix", type=_PATH, required=False)
@click.option("-o", "--output", type=_PATH, default=Path("env.tar.gz"), metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def pack(prefix: Path | None, output: Path, as_json: bool) -> None:
    """Put a venv or conda environment (default: the active one) into one movable archive."""
    packed = shipping.pack_prefix(prefix, output)
    if as_json:
        echo_json(asdict(packed) | {"path": str(packed.path), "notes": list(packed.notes)})
        return
    click.echo(f"packed {packed.files} files, {shipping.mib(packed.size)}: {packed.path}")
    click.echo(f"sha256 {packed.sha256}")
    for note in packed.notes:
        say(note)


@command.command("push")
@click.argument("what", type=_PATH, metavar="ENV.tar.gz|PREFIX")
@click.option("--hosts", metavar="A,B,C", help="These hosts; default: the allocation's.")
@click.option("--hostfile", type=_PATH, metavar="FILE", help="The hosts of this file.")
@click.option("--dest", metavar="DIR", help="The folder to be; default /tmp/USER/NAME.")
@click.option(
    "--fanout", type=Number(1, 64), default=8, metavar="N", help="Copies a source at once."
)
@click.option("--ssh", "ssh_words", envvar="LOOM_SSH", default="ssh", metavar="WORDS")
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Show the tree, send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def push(
    what: Path, hosts: str | None, hostfile: Path | None, dest: str | None, **options: Any
) -> int:
    """Copy an environment to every host; hosts that have it serve the next."""
    from torchloom.envs import push as tree
    from torchloom.envs.remote import check_destination

    names = shipping.chosen_hosts(hosts, hostfile)
    folder = check_destination(dest or f"/tmp/{settings.user_name()}/{shipping.stem(what)}")
    if options["dry"]:
        if options["as_json"]:
            rounds = tree.rounds(names, options["fanout"])
            echo_json([asdict(copy) | {"round": i} for i, r in enumerate(rounds) for copy in r])
        else:
            click.echo(tree.render(names, options["fanout"]))
        return 0
    deliveries = shipping.deliver(what, names, folder, options["fanout"], options["ssh_words"])
    if options["as_json"]:
        echo_json([asdict(each) for each in deliveries])
    else:
        shipping.summarise(deliveries, folder)
    return 1 if any(each.state == "failed" for each in deliveries) else 0


def _saved(file: Path | None) -> "SavedEnv":
    from torchloom.envs import saved

    return saved.read(file or saved.newest(settings.loom_home()))
