"""The package's own names: found when they are asked for, and nothing imported before."""

import json
import subprocess
import sys

import pytest

import torchloom
from torchloom.runner.api import Runner, get_runner
from torchloom.worker.threadlet.run import init


def test_every_public_name_is_the_one_of_its_room() -> None:
    found = {name: getattr(torchloom, name) for name in torchloom.__all__}

    assert found == {"Runner": Runner, "get_runner": get_runner, "init": init}


def test_a_name_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        torchloom.nothing  # noqa: B018


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("import torchloom", []),
        ("import torchloom as loom; loom.init(config={'temperature': 0.7})", ["msgspec"]),
        ("import torchloom as loom; loom.get_runner", []),
    ],
)
def test_a_name_brings_no_more_than_it_needs(program: str, imported: list[str]) -> None:
    watched = ["torch", "asyncio", "nats", "msgspec"]
    look = f"import json, sys; print(json.dumps([m for m in {watched} if m in sys.modules]))"

    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{look}"], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == imported
