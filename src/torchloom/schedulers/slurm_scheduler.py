"""Slurm: `sbatch` in, `squeue` out. One job an app, our agents by `srun` in it."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.launch.records.parcel import Parcel
from torchloom.schedulers.batch.options import add_common, text
from torchloom.schedulers.batch.query import Answer
from torchloom.schedulers.batch.request import SCRIPT
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.slurm_script import add_options, sbatch_script
from torchloom.schedulers.slurm_states import question, read
from torchloom.specs.api import AppDef, CfgVal, runopts

# What commands say when the controller is busy, restarting or out of reach for a moment.
_SILENT = re.compile(r"Unable to contact|[Tt]imed out|Zero Bytes|Connection refused|try again")


class SlurmScheduler(BatchScheduler):
    """One homogeneous job; a heterogeneous one where roles need different nodes."""

    def _run_opts(self) -> runopts:
        opts = runopts()
        add_options(opts)
        add_common(opts)
        return opts

    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        return sbatch_script(app, cfg, folder, self._python(cfg), cwd)

    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        return ("sbatch", "--parsable", str(folder / SCRIPT))

    def _job_of(self, printed: str) -> str:
        return printed.strip().splitlines()[-1].partition(";")[0]  # JOB;CLUSTER

    def _parcel(self, parcel: Parcel) -> Parcel:
        return replace(
            parcel,
            job_variable="SLURM_JOB_ID",
            task_variable="SLURM_ARRAY_TASK_ID",
            requeue=("scontrol", "requeue"),
        )

    def _ask_all(self) -> Answer:
        words = question(settings.user_name())
        return read(self._commands.ask(words, lambda said: bool(_SILENT.search(said))))

    def _cancel_words(self, job: str) -> tuple[str, ...]:
        return ("scancel", job)

    def _polite_words(self, job: str) -> tuple[str, ...]:
        return ("scancel", "--signal=TERM", "--batch", job)

    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        one = ("--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--quiet")
        return ("srun", f"--jobid={job}", *one, "--export=ALL", "--input=none")


def create_scheduler(session_name: str, **kwargs: Any) -> SlurmScheduler:
    """Return Slurm as a scheduler; nothing is asked of it before it must be."""
    return SlurmScheduler("slurm", session_name)
