import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.launch.keeper.fingerprint import (
    digest,
    fingerprint,
    import_environment,
    surroundings,
)

from ...harness.home import allowed


def test_only_what_an_import_reads_is_part_of_the_import_time_environment() -> None:
    read = {
        "PYTHONPATH": "a",
        "LD_PRELOAD": "b",
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS": "x",
        "TORCHINDUCTOR_CACHE_DIR": "y",
        "PYTORCH_CUDA_ALLOC_CONF": "z",
        "LC_ALL": "C",
    }
    later = {
        "TORCHELASTIC_RUN_ID": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHX_JOB_ID": "local://x",
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "PATH": "/bin",
        "LOOM_JOB": "x",
    }

    assert import_environment({**later, **read}) == read


def _install(folder: Path) -> None:
    (folder / "colour-2.dist-info").mkdir()


def _upgrade(folder: Path) -> None:
    (folder / "colour-1.dist-info").rename(folder / "colour-2.dist-info")


def _reinstall(folder: Path) -> None:
    (folder / "colour-1.dist-info" / "RECORD").write_text("")


def _edit_link(folder: Path) -> None:
    (folder / "editable.pth").write_text("/elsewhere")


def _add_module(folder: Path) -> None:
    (folder / "single.py").write_text("")


@pytest.mark.parametrize("change", [_install, _upgrade, _reinstall, _edit_link, _add_module])
def test_a_change_of_what_is_installed_changes_the_fingerprint(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (tmp_path / "colour-1.dist-info").mkdir()
    (tmp_path / "editable.pth").write_text("/here")
    for path in (tmp_path / "colour-1.dist-info", tmp_path / "editable.pth", tmp_path):
        os.utime(path, ns=(0, 0))
    before = fingerprint([str(tmp_path), "/not/there"])

    change(tmp_path)

    assert fingerprint([str(tmp_path), "/not/there"]) != before


def test_the_fingerprint_of_hundreds_of_packages_takes_less_than_three_milliseconds(
    tmp_path: Path,
) -> None:
    for number in range(300):
        (tmp_path / f"package-{number}.dist-info").mkdir()
        (tmp_path / f"package{number}").mkdir()
    taken = []

    for _ in range(20):
        began = time.perf_counter()
        fingerprint([str(tmp_path)])
        taken.append(time.perf_counter() - began)

    assert min(taken) < allowed(0.003)


def test_another_limit_or_umask_is_another_surrounding() -> None:
    before = digest(surroundings())
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    mask = os.umask(0o123)
    try:
        other_mask = digest(surroundings())
    finally:
        os.umask(mask)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else hard, hard))
    try:
        other_limit = digest(surroundings())
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))

    assert digest(surroundings()) == before
    assert other_mask != before
    assert (other_limit != before) == (soft != 0 or hard != 0)
