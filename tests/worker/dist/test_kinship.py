"""Ranks of one launch share a key; ranks of two do not."""

import os
from pathlib import Path

import pytest

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.worker.dist.stores import launch_key, launcher_of


def proc(folder: Path, table: dict[int, tuple[int, str]]) -> Path:
    for pid, (parent, name) in table.items():
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "comm").write_text(f"{name}\n")
        (folder / str(pid) / "stat").write_text(f"{pid} ({name} ) S) S {parent} 1 1")
    return folder


@pytest.mark.parametrize("name", ["hydra_pmi_proxy", "mpirun.openmpi", "slurmstepd", "prted"])
def test_the_launcher_is_found_behind_shells_and_wrappers(tmp_path: Path, name: str) -> None:
    here, launcher = os.getpid(), os.getppid()
    table = {here: (7001, "python"), 7001: (7000, "numactl"), 7000: (launcher, "sh")}

    found = launcher_of(here, proc(tmp_path, {**table, launcher: (1, name), 1: (0, "init")}))

    assert found == ProcessIdentity.of(launcher)


def test_without_a_known_launcher_the_parent_is_what_ranks_share(tmp_path: Path) -> None:
    table = {os.getpid(): (os.getppid(), "python"), os.getppid(): (1, "bash"), 1: (0, "init")}

    assert launcher_of(os.getpid(), proc(tmp_path, table)) == ProcessIdentity.of(os.getppid())


def test_a_launch_that_has_a_number_needs_no_relatives() -> None:
    step = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}

    keys = [
        launch_key({**step, "SLURM_PROCID": "0"}),
        launch_key({**step, "SLURM_PROCID": "1"}),
        launch_key({**step, "SLURM_STEP_ID": "1"}),
        launch_key({**step, "SLURM_RESTART_COUNT": "1"}),
    ]

    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
