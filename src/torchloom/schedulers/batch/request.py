"""What is sent to an engine that takes a script. Printing it is the dry run."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from torchloom.launch.records.parcel import FILE, VARIABLES, Parcel
from torchloom.specs.dataclass import dataclass

SCRIPT = "job.sh"
OUTPUT = "out.log"  # what the script, and the launch in it, print


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
