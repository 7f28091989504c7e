"""What the processes of a launch import before they work: each import is paid at every start."""

import json
import subprocess
import sys

import pytest

SLOW = {
    "torchloom.launch.process": [
        "torchloom.launch.wire",  # the forks import it, beside each other
        "torchloom.launch.keeper.spawn",
        "torchloom.rules.replicas",
    ],
    "torchloom.launch.node": [
        "torchloom.launch.grammar.parser",
        "torchloom.launch.records.request",
        "torchloom.rules.replicas",
        "torchloom.specs.api",
        "torchloom.specs.status",
    ],
    "torchloom.launch.keeper.service": [
        "msgspec",  # the interpreter of a user may lack it
        "torchloom.launch.records.request",
        "torchloom.rules.replicas",
        "torchloom.specs.api",
    ],
}


@pytest.mark.process
@pytest.mark.parametrize("module", SLOW)
def test_a_process_of_a_launch_imports_only_what_it_needs_at_its_start(module: str) -> None:
    look = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-P", "-c", look], capture_output=True, text=True, check=True
    )

    assert set(SLOW[module]) & set(json.loads(done.stdout)) == set()
