"""`loom run -s pbs` on the hosts of a test, which are a fake PBS's."""

import json
from pathlib import Path
from typing import Any

from .engine_jobs import Jobs


class PbsJobs(Jobs):
    """What one test submits, from the login node `ctl`."""

    engine = "pbs"

    def pbs(self, *words: str) -> str:
        done = self.cluster.run("ctl", words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def known(self, handle: str) -> dict[str, Any]:
        """Return what PBS itself knows of a job."""
        told = json.loads(self.pbs("qstat", "-x", "-f", "-F", "json", handle.rpartition("/")[2]))
        (one,) = told["Jobs"].values()
        found: dict[str, Any] = one
        return found

    def without(self, program: str) -> dict[str, str]:
        """Return the variables of a command that a program of PBS refuses to serve."""
        broken = self.folder / "broken"
        broken.mkdir()
        (broken / program).write_text("#!/bin/sh\necho MOM could not be reached >&2\nexit 1\n")
        (broken / program).chmod(0o755)
        return {"PATH": f"{broken}:{self.cluster.with_pbs().env['PATH']}"}

    def timer(self) -> Path:
        """Have the clock of a job's script strike when a file is there, once for each file."""
        strike, slept = self.folder / "strike", self.folder / "slept"
        program = self.cluster.bin / "sleep"
        program.write_text(
            f"#!/bin/sh\necho $* >> {slept}\n"
            f"until mv {strike} {strike}-heard 2> /dev/null; do /bin/sleep 0.05; done\n"
        )
        program.chmod(0o755)
        return strike
