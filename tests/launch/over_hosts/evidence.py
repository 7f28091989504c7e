"""What a soak leaves for people: a line while it goes on, a file when all of it is done."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # pytest alone, unlike `python -m pytest`, does not

from benchmarks.run import commit, machine  # noqa: E402


def teller(capture: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Return what shows a line at once, whatever pytest does with all other output."""

    def tell(line: str) -> None:
        with capture.disabled():
            print(line, file=sys.stderr, flush=True)

    return tell


def write(suite: str, facts: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    """Write down a complete run and where it was."""
    row = {"suite": suite, **facts, "machine": machine(), "commit": commit()}
    path = ROOT / "docs" / "evidence" / f"{suite}.json"
    path.write_text(json.dumps({**row, "samples": samples}, indent=1) + "\n")
