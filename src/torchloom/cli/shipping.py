"""Pack an environment with a bar, find the hosts, push it to them and tell how it went."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchloom import settings
from torchloom.cli.output import paint, rewrite_line, say
from torchloom.errors import UserError
from torchloom.launch.environments import World, find_world
from torchloom.launch.host.identity import host_name

if TYPE_CHECKING:
    from torchloom.envs.archive import PackedEnv
    from torchloom.envs.push import Delivery


def deliver(what: Path, names: list[str], folder: str, fanout: int, ssh: str) -> "list[Delivery]":
    """Send an archive as it is; a folder is packed first, into a file that goes afterwards."""
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
        return Push(archive, digest, folder, way, _told).run(names, fanout)


def _told(delivery: "Delivery") -> None:
    """Tell a terminal of each host as it is done."""
    if sys.stderr.isatty():
        how = delivery.error or f"{delivery.state} after {delivery.seconds:.1f} s"
        say(f"{delivery.host}: {how}")


def summarise(deliveries: "list[Delivery]", folder: str) -> None:
    """Print each host that failed, and how many have it."""
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
        raise UserError("--hosts and --hostfile both name hosts; leave one out")
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
    """Pack with a bar on a terminal."""
    from torchloom.envs import archive
    from torchloom.envs.archive import find_prefix, own_prefix

    found = find_prefix(prefix or own_prefix(settings.environment()))
    live, shown = sys.stderr.isatty(), -1

    def tell(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // max(1, total)
        if live and percent != shown:
            shown = percent
            rewrite_line(f"packing {found.path.name}: {percent} % of {mib(total)}")

    try:
        return archive.pack(found, output, tell)
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
    """Return what an environment is called on the hosts when nobody says otherwise."""
    name = what.absolute().name
    for end in (".tar.gz", ".tgz", ".tar"):
        name = name.removesuffix(end)
    return name.lstrip(".") or "env"


def mib(count: int) -> str:
    """Return bytes as people read them."""
    return f"{count / 2**20:.1f} MiB"
