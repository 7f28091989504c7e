"""`loom env`: save and load a job's variables; pack a Python environment and push it to hosts."""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, LoomGroup, Number, examples
from torchloom.cli.output import echo_json, paint, rewrite_line, say
from torchloom.errors import Failure, NotFound, UserError
from torchloom.launch.environments import World, find_world
from torchloom.launch.host.identity import host_name

if TYPE_CHECKING:
    from torchloom.envs.archive import PackedEnv
    from torchloom.envs.push import Delivery
    from torchloom.envs.saved import SavedEnv

_PATH = click.Path(path_type=Path)


def deliver(what: Path, names: list[str], folder: str, fanout: int, ssh: str) -> "list[Delivery]":
    """Send an archive; a folder is packed into a temporary archive first."""
    import hashlib
    import tempfile

    from torchloom.envs.push import Push
    from torchloom.envs.remote import Ssh

    way = Ssh(_words(ssh), host_name())
    with tempfile.TemporaryDirectory(prefix="loom-push-") as room:
        archive = what
        if what.is_dir():
            archive = pack_prefix(what, Path(room) / "env.tar.gz").path
        try:
            with open(archive, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            text = f"{what}: {error.strerror}; name an archive of `loom env pack` or a folder"
            raise UserError(text) from error
        return Push(archive, digest, folder, way, _show_delivery).run(names, fanout)


def _show_delivery(delivery: "Delivery") -> None:
    """Print on a terminal how a host was served."""
    if sys.stderr.isatty():
        how = delivery.error or f"{delivery.state} after {delivery.seconds:.1f} s"
        say(f"{delivery.host}: {how}")


def summarise(deliveries: "list[Delivery]", folder: str) -> None:
    """Print each host that failed, and the number of hosts that have the environment."""
    for each in deliveries:
        if each.state == "failed":
            click.echo(paint("failed  ", "red") + f"{each.host}: {each.error}")
    good = [each for each in deliveries if each.state != "failed"]
    present = sum(each.state == "present" for each in good)
    more = f", {present} had it already" if present else ""
    click.echo(f"{len(good)} of {len(deliveries)} hosts have {folder}{more}")


def chosen_hosts(hosts: str | None, hostfile: Path | None) -> list[str]:
    """Return the hosts that were named, else those of the allocation."""
    from torchloom.launch.hosts.host_lists import parse_hosts, read_hosts

    if hosts and hostfile:
        raise UserError("--hosts and --hostfile exclude each other")
    if hostfile:
        return [each.host for each in read_hosts(hostfile)]
    if hosts:
        found = [each.host for each in parse_hosts(hosts.replace(",", "\n"))]
        if found:
            return found
    world = here()
    if hosts is not None or world.flavour == "plain" or not world.hosts:
        raise UserError("no hosts: pass --hosts a,b,c or --hostfile FILE, or run in an allocation")
    return list(world.hosts)


def here() -> World:
    """Return the allocation of this shell."""
    return find_world(settings.environment(), host_name())


def pack_prefix(prefix: Path | None, output: Path) -> "PackedEnv":
    """Pack an environment; a terminal shows the progress."""
    from torchloom.envs import archive
    from torchloom.envs.archive import find_prefix, own_prefix

    found = find_prefix(prefix or own_prefix(settings.environment()))
    live, shown = sys.stderr.isatty(), -1

    def show_progress(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // max(1, total)
        if live and percent != shown:
            shown = percent
            rewrite_line(f"packing {found.path.name}: {percent} % of {mib(total)}")

    try:
        return archive.pack(found, output, show_progress)
    finally:
        if live:
            rewrite_line("")


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--ssh {text!r}: {error}") from error
    if not words:
        raise UserError("--ssh (or LOOM_SSH) is empty; write the command, such as `ssh -F FILE`")
    return words


def stem(what: Path) -> str:
    """Return the default name of an environment on the hosts."""
    name = what.absolute().name
    for end in (".tar.gz", ".tgz", ".tar"):
        name = name.removesuffix(end)
    return name.lstrip(".") or "env"


def mib(count: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{count / 2**20:.1f} MiB"


class _EnvGroup(LoomGroup):
    """A group that suggests the nearest command for an unknown one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise NotFound("env command", args[0], self.commands, "`loom env --help` lists them")
        return super().parse_args(ctx, args)


class _ShellCommand(LoomCommand):
    """A command that takes a command line after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@click.group(
    "env",
    cls=_EnvGroup,
    epilog=examples(
        'eval "$(loom env load)"',
        "loom env pack .venv -o train.tar.gz",
        "loom env push train.tar.gz --hosts node1,node2",
    ),
)
def command() -> None:
    """Save and load a job's variables; pack an environment and push it to hosts."""


@command.command("save", epilog=examples("loom env save", "loom env save job.json --all"))
@click.argument("file", type=_PATH, required=False)
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Include every variable, also secrets."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def save(file: Path | None, everything: bool, as_json: bool) -> None:
    """Save the variables of this job to a file.

    FILE has mode 0600; without it, a new file in $LOOM_HOME is written. `loom env load` loads the
    variables in another shell.
    """
    from torchloom.envs import saved
    from torchloom.envs.saved import choose

    env, own_host = settings.environment(), host_name()
    variables, secrets = choose(env, everything)
    kept = saved.SavedEnv.of(variables, here(), own_host)
    path = file or saved.folder(settings.loom_home()) / kept.name
    kept.write(path)
    if as_json:
        row = {"file": str(path), "flavour": kept.flavour, "job_id": kept.job_id}
        echo_json(row | {"variables": len(variables), "left_out": secrets})
        return
    click.echo(f"saved {len(variables)} variables: {path}")
    if secrets:
        say(f"left out as secrets: {', '.join(secrets)}; --all saves them")


@command.command(
    "load",
    epilog=examples('eval "$(loom env load)"', "loom env load job.json --shell fish | source"),
)
@click.argument("file", type=_PATH, required=False)
@click.option("--shell", default="bash", metavar="NAME", help="bash, zsh, sh or fish.")
@click.option("--json", "as_json", is_flag=True, help="Print the saved file as a JSON object.")
def load(file: Path | None, shell: str, as_json: bool) -> None:
    """Print saved variables as code for a shell.

    FILE defaults to the newest saved file.
    """
    from torchloom.envs import saved

    kept = _saved(file)
    if as_json:
        echo_json(kept.to_dict())
        return
    click.echo(os.fsencode(saved.render(kept.variables, shell)), nl=False)
    if odd := saved.unsettable(kept.variables):
        say(f"a shell cannot set {', '.join(odd)}; `loom env shell` can")
    if sys.stdout.isatty():
        how = (
            "loom env load --shell fish | source" if shell == "fish" else 'eval "$(loom env load)"'
        )
        say(f"the variables were only printed; to set them: {how}")


@command.command(
    "shell",
    cls=_ShellCommand,
    epilog=examples("loom env shell", "loom env shell job.json -- python train.py"),
)
@click.argument("file", type=_PATH, required=False)
@click.pass_context
def shell_command(ctx: click.Context, file: Path | None) -> None:
    """Start a shell with saved variables.

    After `--`, start that command instead. FILE defaults to the newest saved file.
    """
    kept = _saved(file)
    own = dict(settings.environment())
    words = ctx.meta["command"] or [own.get("SHELL") or "/bin/sh"]
    try:
        os.execvpe(words[0], words, {**own, **kept.variables})
    except OSError as error:
        text = f"cannot start {words[0]!r}: {error.strerror}; name a command on the saved PATH"
        raise Failure(text) from error


@command.command("pack", epilog=examples("loom env pack", "loom env pack .venv -o train.tar.gz"))
@click.argument("prefix", type=_PATH, required=False)
@click.option(
    "-o",
    "--output",
    type=_PATH,
    default=Path("env.tar.gz"),
    metavar="FILE",
    help="Output file; default env.tar.gz.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def pack(prefix: Path | None, output: Path, as_json: bool) -> None:
    """Pack a Python environment into one archive.

    PREFIX is a venv or conda environment and defaults to the active one. The archive can be
    unpacked in any folder.
    """
    packed = pack_prefix(prefix, output)
    if as_json:
        echo_json(asdict(packed) | {"path": str(packed.path), "notes": list(packed.notes)})
        return
    click.echo(f"packed {packed.files} files, {mib(packed.size)}: {packed.path}")
    click.echo(f"sha256 {packed.sha256}")
    for note in packed.notes:
        say(note)


@command.command(
    "push",
    epilog=examples(
        "loom env push train.tar.gz --hosts node1,node2",
        "loom env push .venv --hostfile hosts.txt --dryrun",
    ),
)
@click.argument("what", type=_PATH, metavar="ENV.tar.gz|PREFIX")
@click.option("--hosts", metavar="A,B,C", help="Hosts; default: those of the allocation.")
@click.option("--hostfile", type=_PATH, metavar="FILE", help="File with the hosts.")
@click.option("--dest", metavar="DIR", help="Destination; default /tmp/USER/NAME.")
@click.option(
    "--fanout", type=Number(1, 64), default=8, metavar="N", help="Copies in parallel per source."
)
@click.option(
    "--ssh",
    "ssh_words",
    envvar="LOOM_SSH",
    default="ssh",
    metavar="WORDS",
    help="Command to use as ssh, with its options.",
)
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Print the copy plan and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def push(
    what: Path, hosts: str | None, hostfile: Path | None, dest: str | None, **options: Any
) -> int:
    """Copy an environment to every host.

    Hosts that have received it pass it on to the next ones.
    """
    from torchloom.envs.push import render, rounds
    from torchloom.envs.remote import check_destination

    names = chosen_hosts(hosts, hostfile)
    folder = check_destination(dest or f"/tmp/{settings.user_name()}/{stem(what)}")
    if options["dry"]:
        if options["as_json"]:
            planned = rounds(names, options["fanout"])
            echo_json([asdict(copy) | {"round": i} for i, r in enumerate(planned) for copy in r])
        else:
            click.echo(render(names, options["fanout"]))
        return 0
    deliveries = deliver(what, names, folder, options["fanout"], options["ssh_words"])
    if options["as_json"]:
        echo_json([asdict(each) for each in deliveries])
    else:
        summarise(deliveries, folder)
    return 1 if any(each.state == "failed" for each in deliveries) else 0


def _saved(file: Path | None) -> "SavedEnv":
    from torchloom.envs import saved

    return saved.read(file or saved.newest(settings.loom_home()))
