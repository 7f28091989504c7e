"""Which collectives torch offers, as torch itself says in a process of its own."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from torchloom.doctor.findings import CheckState, ask
from torchloom.doctor.software import backends

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SAYS = "import torch.distributed as d; print(d.is_gloo_available(), d.is_mpi_available())"


def test_what_torch_says_is_what_is_told_and_torch_stays_outside(place: Any) -> None:
    said = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True).stdout

    (found,) = backends(place(ask=ask))

    assert found.state is CheckState.OK
    assert [name in found.text for name in ("gloo", "mpi")] == [w == "True" for w in said.split()]


def test_a_backend_that_was_asked_for_and_is_not_there_is_a_problem(place: Any) -> None:
    here = place(ask=ask)
    (found,) = backends(replace(here, env={"TORCH_BACKEND": "ucc"}))

    assert found.state is CheckState.PROBLEM
    assert found.text.startswith("TORCH_BACKEND=ucc, but torch has gloo")
    assert "unset TORCH_BACKEND" in found.remedy


def test_a_torch_that_cannot_be_imported_is_a_problem_with_its_last_words(place: Any) -> None:
    def broken(words: Any, limit: float) -> str:
        return ask([words[0], "-c", "raise ImportError('libcudart.so.13: no such file')"], limit)

    (found,) = backends(place(ask=broken))

    assert (found.state, found.text) == (
        CheckState.PROBLEM,
        "torch: ImportError: libcudart.so.13: no such file",
    )
