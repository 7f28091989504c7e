"""Search lines for a pattern in a process of its own: a pattern that never ends ends only this.

It needs the standard library alone. Each question is a line of JSON, `[pattern, seconds, texts]`,
each answer one: the numbers of the texts that match, or in words what is wrong with the pattern.
The kernel ends a search that takes too long.
"""

import json
import re
import signal
import sys


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, in the middle of a search too
    for line in sys.stdin.buffer:
        pattern, seconds, texts = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = found(pattern, texts)
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


if __name__ == "__main__":
    main()
