"""`loom run -s lsf` on the hosts of a test."""

import json
from pathlib import Path
from typing import Any

from .engine_jobs import Jobs

ROOT = Path(__file__).parents[2]

# What the batch system itself keeps of its jobs: script, environment, words.
_STORED = """
import json, pathlib, sys
from tests.harness.cluster.batch.command import Client
print(json.dumps(Client(pathlib.Path(sys.argv[1])).ask("list")["jobs"]))
"""


class LsfJobs(Jobs):
    """What one test submits to LSF, from the login node `ctl`."""

    engine = "lsf"

    def lsf(self, *words: str, stdin: str | None = None) -> str:
        done = self.cluster.run("ctl", words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stored(self) -> list[dict[str, Any]]:
        """Return all that LSF keeps of all jobs."""
        words = [self.python, "-c", _STORED, str(self.cluster.with_lsf().folder)]
        found = self.cluster.run("ctl", words, {"PYTHONPATH": str(ROOT)})
        jobs: list[dict[str, Any]] = json.loads(found.stdout)
        return jobs
