"""Record acts of the demo in a terminal, and draw the recording as an animated SVG.

`make recording` plays the acts in a pseudo-terminal of 80 by 24, keeps what came and when in
docs/pictures/demo.cast (asciicast v2), and draws docs/pictures/demo.svg from that file. `--draw`
only draws, `--check` only says whether the picture is what the file gives. Times are changed for
readers: waits are shortened, and each act is followed by a pause.
"""

import fcntl
import html
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
CAST, PICTURE = PICTURES / "demo.cast", PICTURES / "demo.svg"
ACTS = ("2", "6", "7", "9", "11")  # train, set, stop, kill, down
COMMAND = f"make/demo.py {' '.join(ACTS)}"
SOURCES = ("src", "make", "examples")
WIDTH, HEIGHT = 80, 24
LONGEST_WAIT, PAUSE, HOLD = 1.5, 2.2, 4.0  # seconds: in an act, after an act, at the end
STYLES = {"0": "", "1": "b", "32": "g"}  # what the demo uses, and the class it is drawn with
ESCAPE = re.compile(r"\x1b\[([0-9]+)m")
CELL, LINE, PAD, BAR = 8.4, 19, 16, 34  # of the picture, in its units
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #d0d7de; white-space: pre; }
.b { font-weight: bold; fill: #ffffff; }
.g { fill: #56d364; }
.n { font-size: 12px; fill: #9198a1; }
.r, .s, .p { animation-duration: %(length).2fs; animation-iteration-count: infinite;
  animation-timing-function: step-end; }
.s { transform: translateY(%(end)dpx); animation-name: s; }
.p { fill: #388bfd; animation-name: p; animation-timing-function: linear; }
@keyframes p { from { transform: scaleX(0); } to { transform: scaleX(1); } }
@media (prefers-reduced-motion: reduce) { .r, .s, .p { animation: none; } }
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the terminal: when its line was complete, and its text in pieces of one style."""

    at: float
    pieces: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def main(words: list[str]) -> int:
    """Record and draw, or only draw, or only check."""
    if not words:
        record()
    drawn = draw(CAST.read_text())
    if "--check" in words:
        return int(PICTURE.read_text() != drawn)
    PICTURE.write_text(drawn)
    print(f"{PICTURE.relative_to(ROOT)}: {len(drawn) / 1000:.0f} kB")
    return 0


def record() -> None:
    """Play the acts in a terminal, and write what it was sent, with times, as asciicast v2."""
    changed = git("status", "--porcelain", "--", *SOURCES)
    if changed:
        sys.exit(f"recording: commit these first, so that the recording has a commit:\n{changed}")
    began, start = time.time(), time.monotonic()
    events = [(time.monotonic() - start, text) for text in played()]
    shown = "".join(text for _, text in events)
    for private in (str(ROOT), str(Path.home()) + os.sep, os.uname().nodename + "/"):
        if private in shown:
            sys.exit(f"recording: it shows {private!r}, which is this machine's")
    header = {
        "version": 2,
        "width": WIDTH,
        "height": HEIGHT,
        "timestamp": int(began),
        "command": COMMAND,
        "title": "torchLoom",
        "commit": git("rev-parse", "--short=10", "HEAD"),
    }
    lines = [json.dumps(header), *(json.dumps([round(at, 3), "o", text]) for at, text in events)]
    PICTURES.mkdir(exist_ok=True)
    CAST.write_text("\n".join(lines) + "\n")


def played() -> Iterator[str]:
    """Run the acts on a terminal; yield what they write as it comes, and exit if one fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    words = [sys.executable, *COMMAND.split()]
    with subprocess.Popen(
        words, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        rest = b""
        while data := read(ours):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            text = (whole + newline).decode()
            sys.stdout.write(text.replace("\r", ""))
            sys.stdout.flush()
            yield text
    os.close(ours)
    if process.returncode or rest:
        sys.exit(f"recording: {COMMAND} ended with code {process.returncode} {rest!r}")


def read(terminal: int) -> bytes:
    """Return what a terminal was sent; nothing once all processes have closed it."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def draw(cast: str) -> str:
    """Return the picture of a recording: the same bytes for the same recording."""
    first, *rest = cast.splitlines()
    header = json.loads(first)
    rows = list(paced(rows_of(map(json.loads, rest), header["width"])))
    length = rows[-1].at + HOLD
    groups: dict[float, list[str]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.at, []).append(drawn(number, row))
    frames, parts = [], []
    for number, (at, texts) in enumerate(groups.items()):
        percent = f"{100 * at / length:.3f}%"
        frames.append(f"@keyframes k{number}{{0%{{opacity:0}}{percent}{{opacity:1}}}}")
        parts.append(f'<g class="r" style="animation-name:k{number}">{"".join(texts)}</g>')
    steps, end = scrolled(rows, header["height"], length)
    style = STYLE % {"length": length, "end": end} + "\n".join([*frames, steps])
    return framed(header, style, "\n".join(parts))


def rows_of(events: Iterable[list[Any]], width: int) -> Iterator[Row]:
    """Yield the rows of a terminal of this width that only ever gets whole lines."""
    for at, _, text in events:
        for line in text.splitlines():
            pieces, style = [], ""
            for position, part in enumerate(ESCAPE.split(line)):
                if position % 2:
                    style = STYLES[part]
                elif part:
                    pieces.append((part, style))
            yield from (Row(at, row) for row in wrapped(pieces, width))


def wrapped(pieces: list[tuple[str, str]], width: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield a line as rows of at most so many cells."""
    row: list[tuple[str, str]] = []
    left = width
    for text, style in pieces:
        if not text.isprintable():
            raise ValueError(f"the recording does more than write lines: {text!r}")
        while text:
            if not left:
                yield tuple(row)
                row, left = [], width
            row.append((text[:left], style))
            text, left = text[left:], left - len(text[:left])
    yield tuple(row)


def paced(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows at times to read them: shorter waits, and a pause after each act."""
    before = shown = 0.0
    for row in rows:
        ends_act = not row.pieces and before > 0
        shown += PAUSE if ends_act else min(row.at - before, LONGEST_WAIT)
        before = row.at
        yield Row(round(shown, 2), row.pieces)


def scrolled(rows: list[Row], height: int, length: float) -> tuple[str, int]:
    """Return the keyframes that keep the newest row in view, and where they end."""
    last: dict[float, int] = {}
    for number, row in enumerate(rows):
        last[row.at] = -LINE * max(0, number + 1 - height)
    steps = [f"{100 * at / length:.3f}%{{transform:translateY({y}px)}}" for at, y in last.items()]
    return f"@keyframes s{{0%{{transform:translateY(0px)}}{''.join(steps)}}}", min(last.values())


def drawn(number: int, row: Row) -> str:
    """Return a row as text; an empty one is nothing."""
    spans = "".join(
        f'<tspan class="{style}">{html.escape(text, quote=False)}</tspan>'
        if style
        else html.escape(text, quote=False)
        for text, style in row.pieces
    )
    return f'<text x="{PAD}" y="{(number + 1) * LINE - 5}">{spans}</text>' if spans else ""


def framed(header: dict[str, Any], style: str, rows: str) -> str:
    """Return the whole picture: a window with a title, the rows inside it, and a bar of time."""
    day = time.strftime("%Y-%m-%d", time.gmtime(header["timestamp"]))
    facts = f"{header['command']}, commit {header['commit']}, {day}"
    high, wide = header["height"] * LINE + 8, round(header["width"] * CELL) + 2 * PAD
    full = BAR + high + PAD
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {full}" role="img">
<title>torchLoom trains with four processes, changes their lr, and survives kill -9</title>
<desc>A recording of {facts}; waits are shortened. Drawn from docs/pictures/demo.cast.</desc>
<style>{style}
</style>
<rect x="0.5" y="0.5" width="{wide - 1}" height="{full - 1}" rx="8" fill="#0d1117" \
stroke="#57606a"/>
<text class="n" x="{PAD}" y="22">{facts}; waits are shortened</text>
<line x1="1" y1="{BAR}" x2="{wide - 1}" y2="{BAR}" stroke="#30363d"/>
<svg y="{BAR}" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"><g class="s">
{rows}
</g></svg>
<rect class="p" x="{PAD}" y="{full - 8}" width="{wide - 2 * PAD}" height="2" \
style="transform-origin:{PAD}px 0"/>
</svg>
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
