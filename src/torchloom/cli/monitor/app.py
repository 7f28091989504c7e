"""The live screen: jobs, the ranks, curves and events of one job, keys and a prompt."""

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
l  show the logs    m  move the next curve to the top
o  order the ranks by number, or problems first
/  filter jobs or ranks by words or by rank number; Esc clears the filter
:  prompt           ?  this help   q  quit; jobs keep running

Ranks, curves and events belong to the job under the cursor; curves are
those of the rank under the cursor if it logs any. LAG is the number of steps
a rank is behind the fastest.

Commands at the prompt (Tab completes, Up recalls earlier lines):

"""
SCREEN_HELP = _KEYS + help_text()
_LONGEST = 300  # characters of a message
_OF_THE_SCREEN = (
    *("steer", "write", "write_stop", "devices", "logs", "order", "metric", "filter"),
    *("explain", "quit", "forget_filter"),
)
_INTERRUPTED = (130, -signal.SIGINT)


class SnapshotArrived(Message):
    """A new snapshot of the plane."""

    def __init__(self, snapshot: ScreenSnapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class AnswerArrived(Message):
    """The outcome of a prompt line: an answer or an error, and the job it selected."""

    def __init__(self, line: str, answer: PromptAnswer | None, trouble: str, job: str) -> None:
        super().__init__()
        self.line = line
        self.answer = answer
        self.trouble = trouble
        self.job = job


class Choices(Message):
    """The completions of a line."""

    def __init__(self, text: str, choices: list[str]) -> None:
        super().__init__()
        self.text = text
        self.choices = choices


def _key(key: str, action: str, text: str = "", shown: str | None = None) -> Binding:
    """Return a key binding with priority, so that keys typed after `:` reach the prompt."""
    return Binding(key, action, text, show=bool(text), key_display=shown, priority=True)


class AsciiDriver(LinuxDriver):
    """A driver for ASCII locales: boxes and bars are drawn in ASCII."""

    def write(self, data: str) -> None:
        super().write(in_ascii(data))


class Monitor(App[None]):
    """The full-screen view; it draws the newest snapshot, and threads send the requests."""

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
        super().__init__(driver, ansi_color=True)  # the terminal's colours, light or dark
        self.theme = "ansi-dark"
        self._ask = ask
        self._history = History()
        self._completer = Completer(ask)
        self._poll = Poll(
            ask, lambda found: self.post_message(SnapshotArrived(found)), PollRequest(job)
        )
        self._seen = ScreenSnapshot()
        self._look = ScreenOptions()
        self._before: Widget | None = None  # the widget focused before the prompt

    @property
    def job(self) -> str:
        """The job that keys and commands act on: the one under the cursor."""
        return self._sheet("jobs").key or self._seen.job

    @property
    def watched(self) -> str:
        """The job that was shown last, also after the screen has closed."""
        return self._poll.request.job or self._seen.job

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

    # Messages from the threads.

    @on(SnapshotArrived)
    def _take(self, news: SnapshotArrived) -> None:
        self._seen = news.snapshot
        self._draw()

    @on(AnswerArrived)
    def _show_answer(self, news: AnswerArrived) -> None:
        """Show the outcome of a line: a single line at the bottom, several lines in a window."""
        if not self.is_running:
            return
        if news.answer is None:
            self._say(news.trouble, "bold red")
            return
        if news.answer.leaves:
            self.exit()
            return
        if news.job:
            self._sheet("jobs").choose(news.job)
        text = news.answer.text
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
        self._line.insert_completion(news.text, news.choices)
        if len(news.choices) > 1:
            self._say("  ".join(news.choices))

    # Messages from the widgets.

    @on(TableView.Moved)
    def _moved(self, news: TableView.Moved) -> None:
        if not self.is_running:
            return
        if not news.key or news.key != news.sheet.key:  # the cursor has moved since
            return
        request = self._poll.request
        if news.sheet.id == "jobs" and news.key != request.job:
            self._poll.show(replace(request, job=news.key, rank=None))
        elif news.sheet.id == "ranks" and (request.rank is not None or news.sheet.has_focus):
            self._poll.show(replace(request, rank=int(news.key.rpartition("/")[2])))

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

        self._in_thread(look)

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
        """Disable the keys of the screen while the prompt or a window is open."""
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
        self._say("ranks with problems first" if self._look.is_worst_first else "ranks by number")
        self._draw()

    def action_metric(self) -> None:
        self._look.metric += 1
        self._draw()

    def action_explain(self) -> None:
        self.push_screen(TextWindow("help", SCREEN_HELP))

    def action_devices(self) -> None:
        def closed(line: str | None) -> None:
            self._poll.show(replace(self._poll.request, devices=False))
            if line:
                self.action_write(line)

        self.push_screen(DevicesWindow(), closed)
        self._poll.show(replace(self._poll.request, devices=True))

    def action_logs(self) -> None:
        """Suspend the screen and follow the logs of the job until Ctrl-C."""
        if not self.job:
            return
        words = [sys.executable, "-P", "-m", "torchloom", "logs", "-f", self.job]
        with self.suspend(), _interrupts_only_others():
            print(f"logs of {self.job}; press Ctrl-C to return", flush=True)
            if subprocess.run(words, check=False).returncode not in _INTERRUPTED:
                input("press Enter to return")

    # Helpers.

    _filtered = "ranks"

    def _obey(self, line: str) -> None:
        """Run a line in a thread and post its outcome."""
        self._say(f"{line} ..", "dim")
        job = self.job

        def run() -> None:
            prompt = Prompt(self._ask, job)
            try:
                answer, trouble = prompt.run(line), ""
            except LoomError as error:
                answer, trouble = None, one_line(str(error), _LONGEST)
            except Exception as error:  # a bug in a thread must not look like a slow plane
                answer, trouble = None, f"this is a bug in torchloom: {error!r}"
            self.post_message(
                AnswerArrived(line, answer, trouble, prompt.job if prompt.job != job else "")
            )

        self._in_thread(run)

    def _in_thread(self, act: Callable[[], None]) -> None:
        """Run a slow action in a daemon thread, which does not delay the exit."""
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
        """Show a message in the line above the key bar, beside the prompt if it is open."""
        shown = Text(f" {text}", style, no_wrap=True, overflow="ellipsis")
        self._base.query_one("#said", Label).update(shown)
        self._show(said=bool(text) or not self._line.display)

    def _show(self, **panes: bool) -> None:
        for name, is_there in panes.items():
            self._base.query_one(f"#{name}").display = is_there

    @property
    def _base(self) -> Screen[Any]:
        """The main screen, below any window."""
        return self.screen_stack[0]

    @property
    def _line(self) -> PromptLine:
        return self._base.query_one(PromptLine)

    def _sheet(self, name: str) -> TableView:
        return self._base.query_one(f"#{name}", TableView)

    def _draw(self) -> None:
        """Draw the newest snapshot."""
        if not self.is_running:  # the panes are removed first on exit
            return
        draw(self._base, self._seen, self._look)
        if isinstance(self.screen, DevicesWindow) and self._seen.devices is not None:
            self.screen.show(self._seen.devices)


@contextlib.contextmanager
def _interrupts_only_others() -> Iterator[None]:
    """Make Ctrl-C end the program that has the terminal, not the suspended screen."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
