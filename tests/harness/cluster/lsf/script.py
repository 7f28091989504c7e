"""What bsub runs: the words of a command, or a script with options in it."""

import re
from collections.abc import Iterator


def command_line(words: list[str]) -> str:
    """Join a command's words as LSF does: the first as it is, others quoted where it sees fit."""
    return " ".join([words[0], *map(_quoted, words[1:])])


def _quoted(word: str) -> str:
    if " " in word:
        mark = "'" if '"' in word or "$" in word else '"'
        return f"{mark}{word}{mark}"
    escaped = re.sub(r"([\"'\\()])", r"\\\1", word)
    return f"'{escaped}'" if word.startswith("$") else escaped


def embedded(script: str) -> list[str]:
    """Return the words of all `#BSUB` lines, wherever they stand."""
    found: list[str] = []
    for line in _joined(script):
        match = re.match(r"\s*#\s*BSUB\s*(-.*)", line)
        if match:
            for word in _words(match[1]):
                if word.startswith("#"):
                    break
                found.append(word)
    return found


def is_empty(script: str) -> bool:
    """Say whether nothing but comments is in a script."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in script.splitlines())


def _joined(script: str) -> Iterator[str]:
    whole = ""
    for line in script.splitlines():
        whole += line
        if whole.lstrip().startswith("#") and "BSUB" in whole and whole.endswith("\\"):
            whole = whole[:-1]
            continue
        yield whole
        whole = ""


def _words(text: str) -> list[str]:
    return [
        next(part for part in match.groups() if part is not None)
        for match in re.finditer(r"\"([^\"]*)\"|'([^']*)'|(\S+)", text)
    ]
