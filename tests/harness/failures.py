"""Lists tests that fail in the file `LOOM_TEST_FAILURES` names: a few are run again, alone."""

import os

import pytest

_LISTED: set[str] = set()  # a test may fail, and then what clears up behind it


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """List what failed, once, in the process that hears of all tests."""
    path = os.environ.get("LOOM_TEST_FAILURES", "")
    is_one_of_many = "PYTEST_XDIST_WORKER" in os.environ
    if report.failed and path and not is_one_of_many and report.nodeid not in _LISTED:
        _LISTED.add(report.nodeid)
        with open(path, "a") as file:
            file.write(f"{report.nodeid}\n")
