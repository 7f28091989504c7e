"""The package's own names: found when they are asked for, and nothing imported before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import torchloom
from torchloom import client
from torchloom.client.http import Client, Refused
from torchloom.runner.api import Runner, get_runner
from torchloom.worker.run.run import Run, init

ROOT = Path(__file__).parents[1]
TYPED = """import torchloom as loom


class Net:
    depth: int = 3


with loom.init() as run:
    reveal_type(run.wrap(Net()))
    run.wrap(Net(), "critic").breadth += run.wrap(Net()).depth
"""


def test_every_public_name_is_the_one_of_its_room() -> None:
    found = {name: getattr(torchloom, name) for name in torchloom.__all__}

    assert found == {"Run": Run, "Runner": Runner, "get_runner": get_runner, "init": init}


def test_the_client_comes_with_the_error_that_its_callers_catch() -> None:
    found = {name: getattr(client, name) for name in client.__all__}

    assert found == {"Client": Client, "Refused": Refused}


@pytest.mark.process
def test_public_names_are_listed_before_anything_is_imported() -> None:
    program = "import sys, torchloom as loom; print(*dir(loom)); print('msgspec' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    listed, is_imported = done.stdout.splitlines()
    assert {*torchloom.__all__, "__version__"} <= set(listed.split())
    assert is_imported == "False"


@pytest.mark.process
def test_a_type_checker_knows_a_wrapped_model_as_what_it_was(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED)

    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert done.stdout.splitlines()[:-1] == [
        f'{program}:9: note: Revealed type is "program.Net"',
        f'{program}:10: error: "Net" has no attribute "breadth"  [attr-defined]',
    ]


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
