"""Search lines for a pattern in a process of its own: a pattern that never ends ends only this.

It needs the standard library alone. Each question is a line of JSON: `[pattern, seconds, texts]` is
answered with the numbers of the texts that match, `{"pattern": ..., "path": ..., ...}` with the
lines of a piece of a file that match; in words where something is wrong with the pattern. The
kernel ends a search that takes too long.

A file is searched for a text that every match must hold, and only the lines around it are read.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

LONGEST = 16_384  # bytes of a line; a longer one is searched in parts
_OTHERWISE = re.VERBOSE | re.LOCALE  # flags under which a pattern's letters are not what it holds
_MOST_TEXTS = 8  # one of which a match holds; more are no quicker than a look at each line
_LOOK = 64  # lines between two looks at the clock


def main() -> None:
    """Answer requests until stdin ends."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, in the middle of a search too
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        of_file = isinstance(asked, dict)
        signal.setitimer(signal.ITIMER_REAL, asked["limit"] if of_file else asked[1])
        answer = found_in_file(asked) if of_file else found(asked[0], asked[2])
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def found(pattern: str, texts: list[str]) -> list[int] | str:
    """Return which texts match, or why none can."""
    try:
        search = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return [number for number, text in enumerate(texts) if search(text)]


def found_in_file(asked: dict[str, Any]) -> dict[str, Any] | str:
    """Return where in a piece of a file lines match, as (first byte, byte behind), and its end.

    `start` is the beginning of a line, or of a part of a very long one. The search ends early after
    `most` matches, or after `seconds`, but never before the first line.
    """
    try:
        pattern = re.compile(asked["pattern"])
        texts = needed(asked["pattern"])
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    start, until = asked["start"], time.monotonic() + asked["seconds"]
    data, size = _piece(asked["path"], start, asked["bytes"], asked["is_final"])
    where = data
    if pattern.flags & re.IGNORECASE and texts:
        where, texts = (data.lower(), texts) if data.isascii() else (data, [])
    places: list[tuple[int, int]] = []
    for number, (begin, end) in enumerate(_candidates(where, size, texts), 1):
        if pattern.search(shown(data[begin:end])):
            places.append((start + begin, start + end))
        is_late = number % _LOOK == 0 and time.monotonic() > until
        if is_late or len(places) == asked["most"]:
            return {"end": start + end, "lines": places}
    return {"end": start + size, "lines": places}


def shown(raw: bytes) -> str:
    """Return a line as a terminal would show it: of a progress bar the last state."""
    text = raw.decode(errors="replace").rstrip("\r\n")
    return text.rpartition("\r")[2]


def needed(pattern: str) -> list[bytes]:
    """Return texts one of which is in every line that matches; none where that is not known.

    Where letters of both cases match, the texts are in lower case, and hold for ASCII alone:
    outside of it there are letters that are a `k` or an `s` in lower case.
    """
    compiled = re.compile(pattern)
    if compiled.flags & _OTHERWISE:
        return []
    texts = _needed(re._parser.parse(pattern, compiled.flags))  # type: ignore[attr-defined]
    if not texts or len(texts) > _MOST_TEXTS or any("\ufffd" in text for text in texts):
        return []
    if compiled.flags & re.IGNORECASE:
        texts = {text.lower() for text in texts}
        if not all(text.isascii() for text in texts):
            return []
    try:
        return sorted({text.encode() for text in texts})
    except UnicodeEncodeError:  # half of a letter: no line holds it
        return []


def _needed(parsed: Any) -> set[str]:
    """Return the texts of the part of a pattern whose shortest text is the longest."""
    best: set[str] = set()
    run = ""
    for kind, value in [*((str(each), value) for each, value in parsed), ("", None)]:
        if kind == "LITERAL":
            run += chr(value)
            continue
        if kind == "AT":
            continue  # it takes no letter
        best = max(best, {run} if run else set(), _within(kind, value), key=_worth)
        run = ""
    return best


def _within(kind: str, value: Any) -> set[str]:
    """Return the texts of a group, of alternatives, or of what is repeated at least once."""
    if kind == "SUBPATTERN" and not value[1] & (_OTHERWISE | re.IGNORECASE):
        return _needed(value[3])
    if kind == "ATOMIC_GROUP":
        return _needed(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[0] > 0:
        return _needed(value[2])
    if kind == "BRANCH":
        texts = [_needed(branch) for branch in value[1]]
        return set().union(*texts) if all(texts) else set()
    return set()


def _worth(texts: set[str]) -> int:
    return min(map(len, texts), default=0)


def _piece(path: str, start: int, count: int, is_final: bool) -> tuple[bytes, int]:
    """Return bytes of a file from a place on, and how many of them are whole lines.

    The last line may lack its end when no more will come. A line that is longer than the piece is
    cut where a part of it ends.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", 0
    try:
        data = os.pread(file, count, start)
        is_end = os.fstat(file).st_size <= start + len(data)
    finally:
        os.close(file)
    if is_end and is_final:
        return data, len(data)
    whole = data.rfind(b"\n") + 1
    parts = (len(data) - whole) // LONGEST * LONGEST
    return data, whole + parts


def _candidates(data: bytes, size: int, texts: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the lines that hold one of the texts, or all lines, by their first and last byte."""
    at = 0
    following = {text: data.find(text, 0, size) for text in texts}
    while at < size:
        place = at
        if texts:
            for text, found_at in following.items():
                if 0 <= found_at < at:
                    following[text] = data.find(text, at, size)
            left = [found_at for found_at in following.values() if found_at >= 0]
            if not left:
                return
            place = min(left)
        begin = max(at, data.rfind(b"\n", at, place) + 1)
        begin += (place - begin) // LONGEST * LONGEST
        end = data.find(b"\n", begin, begin + LONGEST) + 1 or min(size, begin + LONGEST)
        yield begin, end
        at = end


if __name__ == "__main__":
    main()
