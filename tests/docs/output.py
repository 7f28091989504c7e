"""Compare what a command printed with what its page shows, and what a page shows with itself."""

import re
from collections.abc import Iterable, Iterator

_LASTED = r"\d+(?:\.\d+)? ?(?:ms|µs|us|s|min|m|h|d)"
_DURATION = rf"{_LASTED}(?: ?{_LASTED})*(?![A-Za-z0-9])"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_SIZE = r"\d+(?:\.\d+)? ?(?:B|kB|KB|MB|GB|KiB|MiB|GiB)\b"
_STATES = "QUEUED|RUNNING|PAUSED|RECOVERING|COMPLETED|FAILED|CANCELLED"
_ID = "[a-z0-9]{13}"  # what an app's id ends with
# What differs from run to run: how a page shows it, and the pattern of what may stand there;
# @1@ is the first group of what is shown.
STANDINS: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*"),
    (r"\b\d\d:\d\d:\d\d\b", r"\d\d:\d\d:\d\d"),
    (rf"\b([A-Za-z][\w.-]*)-(?=[a-z]*\d){_ID}\b", rf"@1@-{_ID}"),
    (r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b", r"[0-9a-f]{8,}"),
    (r"\bpid \d+", r"pid \d+"),
    (r"\b([Ss]teps?)( +|=)\d+\b", r"@1@@2@\d+"),
    (rf"\b({_STATES}) \d+(?!\S)", r"@1@ \d+"),
    (rf"\b((?:\w+[_/])?(?:loss|acc|accuracy))([ =:]+){_NUMBER}", rf"@1@@2@{_NUMBER}"),
    (r"\b\d+(?:\.\d+)? ?(it/s|steps?/s|samples/s|tokens/s)", r"\d+(?:\.\d+)? ?@1@"),
    (rf"\b{_SIZE}", _SIZE),
    (r"\b\d+(?:\.\d+)?%", r"\d+(?:\.\d+)?%"),
    (r"(127\.0\.0\.1|localhost):\d+", r"@1@:\d+"),
    (r"\b(slurm://\w+)/\d+", r"@1@/\d+"),
    (rf"\b{_DURATION}", _DURATION),
)


def matches(expected: Iterable[str], printed: str) -> bool:
    """Say whether the output is what the page shows; spaces that make columns do not count."""
    lines = squeezed("\n".join(expected)).splitlines()
    return re.fullmatch("".join(map(_pattern, lines)), _whole(printed)) is not None


def first_difference(expected: list[str], printed: str) -> str:
    """Return the first line of the page that the output has not, and what it has there."""
    lines = squeezed("\n".join(expected)).splitlines()
    printed_lines = _whole(printed).splitlines()
    for count in range(1, len(lines) + 1):
        if not re.match("".join(map(_pattern, lines[:count])), _whole(printed)):
            there = printed_lines[count - 1] if count <= len(printed_lines) else "(the end)"
            return f"shown:   {lines[count - 1]}\nprinted: {there}"
    return "the output has more lines than the page shows; `...` alone stands for any lines"


def contradictions(shown: Iterable[tuple[int, str]]) -> list[str]:
    """Return where the lines of a page disagree about how long its jobs took, and how old they are.

    Times differ from run to run, so that the output of a command cannot refute them.
    """
    found: list[str] = []
    known: dict[tuple[str, str], float] = {}
    for number, job, what, value in _times(shown):
        before = known.setdefault((job, what), value)
        slack = 1 if max(before, value) < 60 else 60  # a minute and more is shown without seconds
        if what == "age" and value < before:
            found.append(f"line {number}: {job} gets younger: {before:g} s, then {value:g} s")
        elif what == "took" and abs(value - before) > slack:
            found.append(f"line {number}: {job} took {before:g} s, then {value:g} s")
        elif what == "age" and value + slack < known.get((job, "took"), 0):
            found.append(f"line {number}: {job} is younger than its training is long")
        known[job, what] = value
    return found


def _times(shown: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str, float]]:
    """Yield line, job, `took` or `age`, and seconds of each time of an ended job."""
    head: list[str] = []
    for number, line in shown:
        cells = re.split(r"\s{2,}", line.strip())
        row = dict(zip(head, cells, strict=False)) if len(cells) == len(head) else {}
        if cells[0] in ("ID", "JOB"):
            head = cells
        elif ended := _ENDED.match(line):
            yield number, ended[1], "took", _seconds(ended[2])
        elif row.get("STATE") in _FINAL:
            for name in ("TOOK", "AGE"):
                if re.fullmatch(_DURATION, row.get(name, "")):
                    yield number, cells[0], name.lower(), _seconds(row[name])


_FINAL = ("COMPLETED", "FAILED", "CANCELLED")
_ENDED = re.compile(rf"loom: (\S+) (?:{'|'.join(_FINAL)}) after ({_DURATION})")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def _seconds(text: str) -> float:
    parts = re.findall(r"([\d.]+) ?([a-z]+)", text)
    return sum(float(count) * _UNITS[unit] for count, unit in parts)


def squeezed(text: str) -> str:
    """Return lines without the spaces that only make columns."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _whole(printed: str) -> str:
    return f"{text}\n" if (text := squeezed(printed)) else ""


def _pattern(line: str) -> str:
    """Return what a line of the page stands for, with its end."""
    if line == "...":
        return r"(?:.*\n)*"
    found: list[str] = []

    def keep(meant: str, match: re.Match[str]) -> str:
        for number, group in enumerate(match.groups(), 1):
            meant = meant.replace(f"@{number}@", re.escape(group))
        found.append(meant)
        return chr(_MARK + len(found) - 1)

    for shown, meant in STANDINS:
        line = re.sub(shown, lambda match, meant=meant: keep(meant, match), line)
    plain = re.escape(line).replace(r"\.\.\.", ".*")
    return "".join(_stood_for(letter, found) for letter in plain) + "\n"


_MARK = 0xE000  # letters for private use: one for each stand-in of a line


def _stood_for(letter: str, found: list[str]) -> str:
    at = ord(letter) - _MARK
    return found[at] if 0 <= at < len(found) else letter
