"""Run the blocks of a page in order: `python -m tests.docs.run docs/guides/x.md ...`."""

import re
import sys
import time
from pathlib import Path

from . import output
from .page import Block, Command, blocks, commands, is_part_of, needs, patched
from .world import PATIENCE, ROOT, World, world

FOLDERS = ("docs/tutorials", "docs/guides")
DATA = ("yaml", "yml", "json", "toml", "ini")  # without a title: shown, and must be readable
_AUTHOR = 45.0  # seconds that an author waits for what will not come
_LOOKS = re.compile(
    r"loom (ls|show|logs|plot|devices|plan|compare|engines|components|inspect|up --status)\b"
    r"|loom (checkpoint (ls|verify|diff)|alerts|tokens ls|monitor (jobs|ls)|config show)\b"
    r"|(cat|ls|grep|head|tail|squeue|sinfo|wc|jq|test|curl -[sf]+) "
)
_SET = re.compile(r"loom set [\w@.-]+$")
_ACTS = re.compile(
    r"--(follow|stream|undo|fix)\b|\blogs .*-f\b|-X|\bdevices (fail|recover|drain|reg)"
)


class Untrue(AssertionError):
    """A page shows what does not happen."""


def pages() -> list[Path]:
    """Return the pages whose blocks are run."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]


def run_page(path: Path, patience: float = PATIENCE) -> None:
    """Run all blocks of a page in a place of its own; what only looks may take some seconds."""
    text = path.read_text()
    with world(needs(text)) as place:
        for block in blocks(text):
            try:
                run_block(block, place, patience)
            except (Untrue, ValueError) as error:
                raise Untrue(f"{path.relative_to(ROOT)}:{block.line}: {error}") from error


def run_block(block: Block, place: World, patience: float = PATIENCE) -> None:
    """Do what a reader does with a block: run it, or write it to a file."""
    if block.not_run:
        print(f"line {block.line}: not run: {block.not_run}", flush=True)
    elif block.language == "console":
        for command in commands(block):
            run_command(command, place, patience)
    elif block.title and block.language == "diff":
        file = place.folder / block.title
        file.write_text(patched(file.read_text(), block.body))
    elif block.title:
        _write(block, place.folder / block.title)
    elif block.language == "python":
        _run_script(block, place)
    elif block.language in DATA:
        readable(block)
    elif block.language != "text":
        raise ValueError(f"no test runs a block of the kind `{block.language}` without a title")


def run_command(command: Command, place: World, patience: float = PATIENCE) -> None:
    """Type one line. What only looks is looked at again until it shows what the page shows."""
    words = place.here(command.words)
    expected = [place.here(line) for line in command.expected]
    end = time.monotonic() + patience
    while True:
        code, printed = place.shell(words)
        good = code in ((1, 2) if command.refused else (0,))
        if good and output.matches(expected, printed):
            print(f"line {command.line}: $ {command.words}", flush=True)
            return
        if not looks(command.words) or time.monotonic() > end:
            break
        time.sleep(0.2)
    why = output.first_difference(expected, printed) if good else f"it exits with {code}"
    raise Untrue(f"line {command.line}: $ {words}\n{why}\n--- printed:\n{printed}---")


def looks(words: str) -> bool:
    """Say whether a line only looks at something, so that it can be run again."""
    first = words.partition("|")[0].strip()
    is_look = _LOOKS.match(f"{first} ") or _SET.match(first)
    return bool(is_look) and not _ACTS.search(words) and ">" not in words


def readable(block: Block) -> None:
    """Read YAML, JSON, TOML or INI; raise where it cannot be read."""
    import configparser
    import json
    import tomllib

    import yaml

    if block.language == "json":
        rest = block.body.strip()
        while rest:  # one value, or one after the other
            _, end = json.JSONDecoder().raw_decode(rest)
            rest = rest[end:].lstrip()
    elif block.language == "toml":
        tomllib.loads(block.body)
    elif block.language == "ini":
        configparser.ConfigParser().read_string(block.body)
    else:
        try:
            list(yaml.safe_load_all(block.body))
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error


def _write(block: Block, file: Path) -> None:
    """Write the block's file; one of examples/ is there already and must be what is shown."""
    name = str(block.title)
    if name.startswith("examples/"):
        if not is_part_of(ROOT / name, block.body):
            raise Untrue(f"the block is no part of {name}")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{block.body}\n")


def _run_script(block: Block, place: World) -> None:
    """Run Python as a file of its own: what it starts may want to find its source again."""
    file = place.folder / f"block_at_line_{block.line}.py"
    file.write_text(f"{block.body}\n")
    code, printed = place.shell(f"python {file}")
    file.unlink()
    if code:
        raise Untrue(f"the script exits with {code}:\n{printed}")


def main(paths: list[str]) -> int:
    """Run these pages, or all; say what is untrue, and return the exit code."""
    failed = 0
    for path in map(Path, paths) if paths else pages():
        began = time.monotonic()
        print(f"== {path}", flush=True)
        try:
            run_page(path.resolve(), patience=_AUTHOR)
        except (Untrue, AssertionError) as error:
            failed += 1
            print(f"FAILED {error}", flush=True)
        else:
            print(f"ok, {time.monotonic() - began:.1f} s", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
