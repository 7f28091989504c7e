"""Write a job's script: directives of an engine, then a few lines that find Python and the job.

Whatever comes from outside is quoted; the job's own words and variables are not in the script.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torchloom import settings
from torchloom.errors import UserError, shorten
from torchloom.launch.records.parcel import FILE, VARIABLES, Parcel
from torchloom.specs.dataclass import dataclass

SCRIPT = "job.sh"
OUTPUT = "out.log"  # what the script, and the launch in it, print
ENTRY = "torchloom.cli.batch"
# A login makes this folder and removes it: a job, and what is sent into it, must agree on another.
OWN_SESSION = "unset XDG_RUNTIME_DIR"
# A plane that came with a job which was killed leaves soon.
IDLE = 'export LOOM_PLANE_IDLE="${LOOM_PLANE_IDLE:-30}"'
LONGEST = 4000  # letters of a directive: engines read them into a fixed room
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_FOLDER = "does not see $folder: choose a job_dir on a file system that all hosts share"
_NO_CWD = "does not see the working directory: submit from a folder that all hosts share"
_NO_PYTHON = (
    "has no usable $python: submit with one on a file system that all hosts share, name another "
    "by -cfg python=.., load one by -cfg setup=.., or copy one there with loom env push"
)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A script, the words that submit it, and what lies beside it where only its user can read."""

    folder: Path
    script: str
    argv: tuple[str, ...]
    parcel: Parcel
    workspaces: Mapping[str, Mapping[str, str]]  # what is copied for each role, and to where
    notes: tuple[str, ...] = ()
    reads_script: bool = False  # the words read it from stdin

    @property
    def command_line(self) -> str:
        """What a person would type."""
        typed = shlex.join(self.argv)
        read = shlex.quote(str(self.folder / SCRIPT))
        return f"{typed} < {read}" if self.reads_script else typed

    def __str__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"submit: {self.command_line}", f"folder: {self.folder}"]
        lines += [
            f"private: {VARIABLES} ({len(self.parcel.env)} variables), {FILE} (the app)",
            *(
                f"copy: {path} for {role}"
                for role, made in self.workspaces.items()
                for path in made
            ),
            f"script: {self.folder / SCRIPT}",
        ]
        return "\n".join([*lines, self.script.rstrip("\n")])


class BadDirective(UserError):
    """A value that no directive of an engine can carry."""

    code = "bad_directive"

    def __init__(self, name: str, value: str, why: str) -> None:
        super().__init__(f"{name}: {shorten(value)!r} {why}")


def checked(name: str, value: str) -> str:
    """Return a value that fits into one line of a script; raise BadDirective otherwise."""
    if _CONTROL.search(value):
        raise BadDirective(name, value, "has control characters, which a directive cannot carry")
    if len(value.encode(errors="surrogateescape")) > LONGEST:
        raise BadDirective(name, value, f"is longer than the {LONGEST} bytes of a directive")
    return value


def script(
    directives: Iterable[str],
    folder: Path,
    cwd: str,
    python: str,
    setup: Sequence[str] = (),
    before: Sequence[str] = (),
    shell: str = "/bin/bash",
) -> str:
    """Return the whole script; `setup` are the user's own lines, `before` the engine's."""
    place, interpreter = shlex.quote(str(folder)), shlex.quote(python)
    lines = [
        f"#!{shell}",
        *directives,
        f"folder={place}",
        OWN_SESSION,
        f'. "$folder"/{VARIABLES} || {{ {_say(_NO_FOLDER)}; exit 73; }}',
        IDLE,
        *before,
        f"cd -- {shlex.quote(cwd)} || {{ {_say(_NO_CWD)}; exit 73; }}",
        *setup,
        f"python={interpreter}",
        f'"$python" -P -c "import torchloom" || {{ {_say(_NO_PYTHON)}; exit 127; }}',
        f'exec "$python" -P -m {ENTRY} "$folder"',
    ]
    return "\n".join(lines) + "\n"


def in_folder(folder: Path, words: Sequence[str]) -> list[str]:
    """Return what runs words with the variables that a job's folder holds, inside that job."""
    found = f'{OWN_SESSION}; . "$0"/{VARIABLES}; export {settings.INSIDE_VARIABLE}=1; exec "$@"'
    return ["/bin/sh", "-c", found, str(folder), *words]


def _say(sentence: str) -> str:
    return f'echo "loom: $(uname -n) {sentence}" >&2'
