"""What the long forms leave behind: figures with their raw samples, machine and commit."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # pytest alone, unlike `python -m pytest`, does not

from benchmarks.run import commit, machine  # noqa: E402


def write(suite: str, samples: Sequence[Any], **facts: Any) -> None:
    """Write the evidence of one suite, replacing that of an earlier run."""
    origin = {"machine": machine(), "commit": commit()}
    row = {"suite": suite, **facts, **origin, "samples": list(samples)}
    (ROOT / f"docs/evidence/{suite}.json").write_text(json.dumps(row, indent=1) + "\n")
