"""README is short, its code is that of an example, and its links lead somewhere."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
EXAMPLE = ROOT / "examples/pytorch/train_resumable.py"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINKS = sorted(set(re.findall(r'\]\(([^)#]+)\)|src="([^"]+)"', TEXT)))


def typed() -> list[str]:
    """Return the command lines of the page, one for each part of a line."""
    consoles = [body for kind, body in BLOCK.findall(TEXT) if kind == "console"]
    found = [line[2:] for body in consoles for line in body.splitlines() if line[:2] == "$ "]
    return [part.strip() for line in found for part in line.partition(" #")[0].split(";")]


def test_readme_has_at_most_150_lines() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_its_code_is_a_part_of_an_example() -> None:
    (code,) = (body for kind, body in BLOCK.findall(TEXT) if kind == "python")

    assert code in EXAMPLE.read_text()


@pytest.mark.parametrize("link", ["".join(pair) for pair in LINKS])
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).exists()


def test_each_make_target_is_there() -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"(?:`|^\$ )make ([a-z]+)(?= |`|$)", TEXT, re.MULTILINE)) <= known


@pytest.mark.process
@pytest.mark.parametrize("line", [line for line in typed() if line.startswith("loom ")])
def test_each_command_line_has_a_verb_and_options_of_loom(line: str) -> None:
    verb, *words = shlex.split(line)[1:]
    if verb.startswith("-"):
        return
    done = subprocess.run(
        [ROOT / ".venv/bin/loom", verb, "--help"], capture_output=True, text=True, check=False
    )
    own = words[: words.index("train.py")] if "train.py" in words else words
    options = [word for word in own if word.startswith("-")]
    assert done.returncode == 0
    assert [option for option in options if option not in done.stdout] == []
