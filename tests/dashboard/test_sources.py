"""The dashboard's own tests: types, lint, and what needs no browser."""

import shutil
import subprocess

import pytest

from ..harness.dashboard_build import ROOT

pytestmark = [pytest.mark.process, pytest.mark.needs("dashboard")]
FOLDER = ROOT / "dashboard"


def test_types_lint_and_unit_tests_of_the_dashboard_are_clean() -> None:
    npm = shutil.which("npm")
    if npm is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("the dashboard was built elsewhere: there is no npm, or nothing it installed")

    done = subprocess.run(
        [npm, "run", "verify"], cwd=FOLDER, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
