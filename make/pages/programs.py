"""Which training programs can do what, as the tests show it: read from their marks."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pages.text import code, section, table

MARK = "shows"
CAPABILITIES = {  # by the word of a mark: the head of a column, and what it means
    "curve": ("Curves", "the numbers that it logs are the run's curves, at its own steps"),
    "step": ("Own steps", "the run's steps are the program's, also after a restart"),
    "lr": (
        "Set `lr`",
        "`loom set lr=...` acts at one step on all ranks, measured from the weights",
    ),
    "checkpoint": ("Checkpoint now", "`loom checkpoint` saves at one step on all ranks"),
    "killed": (
        "Killed, resumed",
        "after `kill -9` of a rank it resumes by itself, at the right step, with the right `lr` and"
        " the weights of an undisturbed training",
    ),
    "stop": (
        "Stop, resume",
        "`loom stop` and `loom pause --release` save; `loom resume` continues",
    ),
    "fewer": ("Fewer ranks", "`loom resume -n 1` continues, and says that it is not bit-exact"),
    "live": ("Replaced live", "a killed rank is replaced while the others keep their processes"),
}
PROGRAMS = (  # in this order
    "`run.steps`",
    "Hugging Face `Trainer`",
    "Lightning `Trainer`",
    "Accelerate",
    "Script like `run_clm.py`",
    "Plain loop",
    "DDP loop",
    "Loop like nanoGPT's",
    "FSDP2 loop",
    "Tensor parallel loop",
    "torchft",
)
_HEAD = """# Training programs

What works with which program. None of them has a line of torchLoom in it, except those with
`run.steps`. Each *yes* is a test of real processes with the real framework and a small random
model; it judges by files that the program itself has written. Without a *yes*, no test shows it.
"""
_HOW = "## The tests\n\nEach test is a function in the repository's `tests`."


def page(tests: Path) -> str:
    """Return the page, from the marks of all tests in a folder."""
    shown: dict[str, dict[str, list[str]]] = {name: {} for name in PROGRAMS}
    for program, words, test in marks(tests):
        for word in words:
            if program not in shown or word not in CAPABILITIES:
                raise ValueError(
                    f"{test}: {program!r} or {word!r} is not in make/pages/programs.py"
                )
            shown[program].setdefault(word, []).append(test)
    known = {name: what for name, what in shown.items() if what}
    heads = [head for head, _ in CAPABILITIES.values()]
    rows = [
        [name, *("yes" if word in what else "" for word in CAPABILITIES)]
        for name, what in known.items()
    ]
    tests_of = [
        [name, CAPABILITIES[word][0], code(test)]
        for name, what in known.items()
        for word in CAPABILITIES
        for test in what.get(word, [])
    ]
    return section(
        _HEAD,
        table(["Program", *heads], rows),
        table(["Column", "Means"], CAPABILITIES.values()),
        _HOW,
        table(["Program", "Column", "Test"], tests_of),
    )


def marks(tests: Path) -> Iterator[tuple[str, list[str], str]]:
    """Yield each mark of a test: the program, the capabilities, the test's name."""
    for path in sorted(tests.rglob("test_*.py")):
        text = path.read_text()
        if f"mark.{MARK}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                name = f"{path.relative_to(tests)}::{node.name}"
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(f".{MARK}"):
                        program, *words = [ast.literal_eval(word) for word in call.args]
                        yield program, words, name
