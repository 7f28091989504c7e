"""Check whether a planned app could start here: commands, scripts, ports, disk space."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from torchloom import settings
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.settings import LOOPBACK

_ROOM = 100 * 2**20  # free bytes that a run needs
_PATIENCE = 60  # seconds for the check of a script


def problems(request: LaunchRequest) -> list[str]:
    """Return the problems, one sentence each."""
    found = [problem for role in request.roles for problem in _of_role(request, role)]
    return list(dict.fromkeys([*found, *_of_state()]))


def _of_role(request: LaunchRequest, role: RoleRequest) -> Iterator[str]:
    for replica in role.replicas:
        yield from _of_command(role, replica, role.cwd or request.cwd)
        for name, port in replica.ports.items():
            if port and _is_taken(port):
                yield f"role {role.name}: port {port} ({name}) is in use"


def _of_command(role: RoleRequest, replica: ReplicaRequest, cwd: str) -> Iterator[str]:
    found = shutil.which(replica.argv[0], path=replica.env.get("PATH"))
    if found is None:
        yield f"role {role.name}: no command {replica.argv[0]!r} on its PATH"
    elif "python" in os.path.basename(found) and not role.workspace:
        yield from _of_python(role, found, replica.argv[1:], cwd)


def _of_python(role: RoleRequest, python: str, words: tuple[str, ...], cwd: str) -> Iterator[str]:
    """Check that a script exists and that its top-level imports are installed."""
    script = next((word for word in words if not word.startswith("-")), "")
    path = Path(cwd, script)
    if "-m" in words[:1] or not script.endswith(".py"):
        return
    if not path.is_file():
        yield f"role {role.name}: no file {str(path)!r}"
        return
    for problem in _import_problems(python, path):
        yield f"role {role.name}: {path.name} {problem}"


_FIND_IMPORTS = """
import ast, importlib.util, os, sys
path = sys.argv[1]
sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
wanted = set()
for node in ast.parse(open(path, "rb").read()).body:
    if isinstance(node, ast.Import):
        wanted.update(alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        wanted.add(node.module.partition(".")[0])
print(*sorted(name for name in wanted if importlib.util.find_spec(name) is None))
"""


def _import_problems(python: str, path: Path) -> list[str]:
    """Check with the role's own interpreter; imports inside functions or `try` are ignored."""
    words = [python, "-c", _FIND_IMPORTS, str(path)]
    try:
        looked = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"cannot be checked: {error}"]
    if looked.returncode:
        return [f"cannot be read: {looked.stderr.strip().rpartition(chr(10))[2]}"]
    return [f"imports {name!r}, which {python} does not have" for name in looked.stdout.split()]


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _of_state() -> Iterator[str]:
    home = settings.loom_home()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        yield f"the state folder {home} is not writable; set LOOM_HOME to another"
    elif shutil.disk_usage(existing).free < _ROOM:
        yield f"less than {_ROOM >> 20} MiB of disk space are free for {home}"
