"""The live screen: jobs, the ranks and curves of one, what happens, keys and a prompt to steer."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Input, Label, Static

from torchloom.cli.monitor import view
from torchloom.cli.monitor.panes import WIDE, DevicesWindow, ScreenOptions, TextWindow, draw
from torchloom.cli.monitor.poll import Poll, PollRequest, ScreenSnapshot
from torchloom.cli.monitor.prompt import Ask, Prompt, PromptAnswer, help_text
from torchloom.cli.monitor.prompt_input import Completer, History
from torchloom.cli.monitor.widgets import PromptLine, TableView
from torchloom.cli.output import in_ascii, one_line, shows_unicode
from torchloom.errors import LoomError

_KEYS = """\
Tab, Shift+Tab  next pane          arrows, PgUp, PgDn, Home, End  move
p  pause the job    r  resume it   x  stop it   s  set a knob   d  devices
l  logs             m  next curve on top
o  ranks: by number, or those first that need a look
/  filter the jobs or ranks: words, or the number of a rank; Esc forgets it
:  prompt           ?  this        q  quit; jobs run on

Ranks, curves and events are those of the job under the cursor; the curves
those of the rank under the cursor, where it logs any. LAG is how many steps
a rank is behind the fastest.

At the prompt (Tab completes, Up brings back what was typed):

"""
SCREEN_HELP = _KEYS + help_text()
_LONGEST = 300  # characters of a message
_OF_THE_SCREEN = (
    *("steer", "write", "write_stop", "devices", "logs", "order", "metric", "filter"),
    *("explain", "quit", "forget_filter"),
)
_INTERRUPTED = (130, -signal.SIGINT)


class SnapshotArrived(Message):
    """How things are now."""

    def __init__(self, snapshot: ScreenSnapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class AnswerArrived(Message):
    """What came of a line of the prompt: an answer or trouble, and the job it chose."""

    def __init__(self, line: str, said: PromptAnswer | None, trouble: str, job: str) -> None:
        super().__init__()
        self.line = line
        self.said = said
        self.trouble = trouble
        self.job = job


class Choices(Message):
    """How a line may go on."""

    def __init__(self, text: str, choices: list[str]) -> None:
        super().__init__()
        self.text = text
        self.choices = choices


def _key(key: str, action: str, text: str = "", shown: str | None = None) -> Binding:
    """Return a key that is taken in the order of typing: what follows `:` is no key any more."""
    return Binding(key, action, text, show=bool(text), key_display=shown, priority=True)


class AsciiDriver(LinuxDriver):
    """A terminal whose locale has no more than ASCII: boxes and bars are drawn with that."""

    def write(self, data: str) -> None:
        super().write(in_ascii(data))


class Monitor(App[None]):
    """Everything is drawn from the newest snapshot; every question is asked in a thread."""

    TITLE = "torchLoom"
    CSS_PATH = "screen.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-narrow"),
        (WIDE, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-flat"),
        (20, "-low"),
        (36, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("p", "steer('pause')", "pause"),
        _key("r", "steer('resume')", "resume"),
        _key("s", "write('set ')", "set"),
        _key("x", "write_stop"),
        _key("d", "devices", "devices"),
        _key("l", "logs", "logs"),
        _key("o", "order", "order"),
        _key("m", "metric"),
        _key("slash", "filter", "filter", "/"),
        _key("colon", "write('')", "prompt", ":"),
        _key("question_mark", "explain", "help", "?"),
        _key("q", "quit", "quit"),
        Binding("escape", "forget_filter", show=False),
    ]

    def __init__(self, ask: Ask, job: str = "") -> None:
        driver = None if shows_unicode() else AsciiDriver
        super().__init__(driver, ansi_color=True)  # its own colours: light or dark is its choice
        self.theme = "ansi-dark"
        self._ask = ask
        self._history = History()
        self._completer = Completer(ask)
        self._poll = Poll(
            ask, lambda found: self.post_message(SnapshotArrived(found)), PollRequest(job)
        )
        self._seen = ScreenSnapshot()
        self._look = ScreenOptions()
        self._before: Widget | None = None  # who had the focus before the line

    @property
    def job(self) -> str:
        """The job that keys and lines mean: the one under the cursor, shown already or not."""
        return self._sheet("jobs").key or self._seen.job

    @property
    def watched(self) -> str:
        """The job that was looked at last, also when the screen has been left."""
        return self._poll.wish.job or self._seen.job

    def compose(self) -> ComposeResult:
        yield Label(id="top", markup=False)
        yield Label(id="trouble", markup=False)
        with Container(id="panes"):
            yield TableView(view.JOBS, "jobs")
            yield TableView(view.RANKS, "ranks")
            yield Static(id="curves")
            yield TableView(view.EVENTS, "events", follows=True)
        with Horizontal(id="bottom"):
            yield Label(id="purpose", markup=False)
            yield PromptLine(self._history.lines)
            yield Label(id="said", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self._sheet("jobs").border_title = " jobs "
        self._sheet("jobs").empty = "no jobs yet; `loom run` or `loom launch` starts one"
        self._sheet("ranks").empty = "no ranks"
        self._sheet("events").border_title = " events "
        self.query_one("#curves").border_title = " curves "
        self._close_line()
        self._sheet("jobs").focus()
        self._draw()
        self._poll.start()

    def on_unmount(self) -> None:
        self._poll.stop()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    # What comes from the threads.

    @on(SnapshotArrived)
    def _take(self, news: SnapshotArrived) -> None:
        self._seen = news.snapshot
        self._draw()

    @on(AnswerArrived)
    def _tell(self, news: AnswerArrived) -> None:
        """Show what came of a line: one line at the bottom, more of them in a window."""
        if not self.is_running:
            return
        if news.said is None:
            self._say(news.trouble, "bold red")
            return
        if news.said.leaves:
            self.exit()
            return
        if news.job:
            self._sheet("jobs").choose(news.job)
        text = news.said.text
        if "\n" in text:
            self._say("")
            self.push_screen(TextWindow(news.line, text))
        else:
            self._say(text)
        self._poll.hurry()

    @on(Choices)
    def _offer(self, news: Choices) -> None:
        if not self.is_running or not self._line.has_focus:
            return
        self._line.go_on(news.text, news.choices)
        if len(news.choices) > 1:
            self._say("  ".join(news.choices))

    # What comes from the keys.

    @on(TableView.Moved)
    def _moved(self, news: TableView.Moved) -> None:
        if not self.is_running:
            return
        if not news.key or news.key != news.sheet.key:  # it has moved on
            return
        wish = self._poll.wish
        if news.sheet.id == "jobs" and news.key != wish.job:
            self._poll.look_at(replace(wish, job=news.key, rank=None))
        elif news.sheet.id == "ranks" and (wish.rank is not None or news.sheet.has_focus):
            self._poll.look_at(replace(wish, rank=int(news.key.rpartition("/")[2])))

    @on(TableView.Picked)
    def _picked(self, news: TableView.Picked) -> None:
        if news.sheet.id == "jobs":
            self._sheet("ranks").focus()

    @on(PromptLine.Left)
    def _close_line(self) -> None:
        if self._line.purpose == "/" and self._line.display:
            self._look.filters[self._filtered] = ""
            self._draw()
        self._hide_line()

    @on(PromptLine.Stuck)
    def _complete(self, news: PromptLine.Stuck) -> None:
        job = self.job

        def look() -> None:
            self.post_message(Choices(news.text, self._completer.complete(news.text, job)))

        self._beside(look)

    @on(Input.Changed, "#line")
    def _typed(self, news: Input.Changed) -> None:
        if self._line.purpose == "/" and self._line.display:
            self._look.filters[self._filtered] = news.value
            self._draw()

    @on(Input.Submitted, "#line")
    def _entered(self, news: Input.Submitted) -> None:
        is_command = self._line.purpose == ":"
        self._hide_line()
        if is_command and news.value.strip():
            self._history.add(news.value)
            self._obey(news.value.strip())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Take no key for one of the screen while somebody types or reads something else."""
        is_busy = isinstance(self.focused, PromptLine) or len(self.screen_stack) > 1
        return not (is_busy and action in _OF_THE_SCREEN)

    def action_steer(self, word: str) -> None:
        if self.job:
            self._obey(f"{word} {self.job}")

    def action_write_stop(self) -> None:
        self.action_write(f"stop {self.job}")

    def action_write(self, text: str) -> None:
        self._open_line(":", text)

    def action_filter(self) -> None:
        focused = self.focused.id if self.focused else ""
        self._filtered = "jobs" if focused == "jobs" else "ranks"
        self._open_line("/", self._look.filters[self._filtered])

    def action_forget_filter(self) -> None:
        self._look.filters = dict.fromkeys(self._look.filters, "")
        self._say("")
        self._draw()

    def action_order(self) -> None:
        self._look.is_worst_first = not self._look.is_worst_first
        self._say(
            "ranks that need a look first" if self._look.is_worst_first else "ranks by number"
        )
        self._draw()

    def action_metric(self) -> None:
        self._look.metric += 1
        self._draw()

    def action_explain(self) -> None:
        self.push_screen(TextWindow("help", SCREEN_HELP))

    def action_devices(self) -> None:
        def closed(line: str | None) -> None:
            self._poll.look_at(replace(self._poll.wish, devices=False))
            if line:
                self.action_write(line)

        self.push_screen(DevicesWindow(), closed)
        self._poll.look_at(replace(self._poll.wish, devices=True))

    def action_logs(self) -> None:
        """Lend the terminal to the logs of the job until Ctrl-C."""
        if not self.job:
            return
        words = [sys.executable, "-P", "-m", "torchloom", "logs", "-f", self.job]
        with self.suspend(), _interrupts_only_others():
            print(f"logs of {self.job}; Ctrl-C comes back", flush=True)
            if subprocess.run(words, check=False).returncode not in _INTERRUPTED:
                input("Enter comes back")

    # How it is done.

    _filtered = "ranks"

    def _obey(self, line: str) -> None:
        """Carry out a line beside the screen and tell what came of it."""
        self._say(f"{line} ..", "dim")
        job = self.job

        def run() -> None:
            prompt = Prompt(self._ask, job)
            try:
                said, trouble = prompt.run(line), ""
            except LoomError as error:
                said, trouble = None, one_line(str(error), _LONGEST)
            except Exception as error:  # a thread's bug must not look like a plane that is slow
                said, trouble = None, f"this is a bug in torchloom: {error!r}"
            self.post_message(
                AnswerArrived(line, said, trouble, prompt.job if prompt.job != job else "")
            )

        self._beside(run)

    def _beside(self, act: Callable[[], None]) -> None:
        """Do what may take long in a thread that keeps nobody from leaving."""
        threading.Thread(target=act, daemon=True).start()

    def _open_line(self, purpose: str, text: str) -> None:
        self._before = self.focused
        self._base.query_one("#purpose", Label).update(purpose)
        self._show(purpose=True, line=True, said=False)
        self._line.open(purpose, text)

    def _hide_line(self) -> None:
        had_focus = self._line.has_focus
        self._show(purpose=False, line=False, said=True)
        if had_focus:
            (self._before or self._sheet("jobs")).focus()

    def _say(self, text: str, style: str = "") -> None:
        """Say something in the last line but one; beside what is being typed, if need be."""
        shown = Text(f" {text}", style, no_wrap=True, overflow="ellipsis")
        self._base.query_one("#said", Label).update(shown)
        self._show(said=bool(text) or not self._line.display)

    def _show(self, **panes: bool) -> None:
        for name, is_there in panes.items():
            self._base.query_one(f"#{name}").display = is_there

    @property
    def _base(self) -> Screen[Any]:
        """The screen itself, whatever is laid over it."""
        return self.screen_stack[0]

    @property
    def _line(self) -> PromptLine:
        return self._base.query_one(PromptLine)

    def _sheet(self, name: str) -> TableView:
        return self._base.query_one(f"#{name}", TableView)

    def _draw(self) -> None:
        """Bring everything in line with the newest snapshot."""
        if not self.is_running:  # on the way out the panes go first
            return
        draw(self._base, self._seen, self._look)
        if isinstance(self.screen, DevicesWindow):
            self.screen.show(self._seen.devices)


@contextlib.contextmanager
def _interrupts_only_others() -> Iterator[None]:
    """Have Ctrl-C end the program that was lent the terminal, not the screen behind it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
