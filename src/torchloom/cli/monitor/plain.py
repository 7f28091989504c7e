"""The prompt without a screen: one command, the lines of a pipe, or a person at a terminal."""

import sys

from torchloom.cli.monitor.prompt import Ask, Prompt, PromptAnswer
from torchloom.cli.monitor.prompt_input import Completer, History
from torchloom.cli.output import echo, one_line, say
from torchloom.errors import LoomError

_LONGEST = 1000  # characters of a message


def once(prompt: Prompt, words: list[str]) -> None:
    """Carry out one command; what goes wrong is raised."""
    _print(prompt.run_words(words))


def from_pipe(prompt: Prompt) -> None:
    """Carry out the lines of standard input up to the first that fails: the rest may rely on it."""
    for line in sys.stdin:
        said = prompt.run(line)
        _print(said)
        if said.leaves:
            return


def converse(prompt: Prompt, ask: Ask) -> None:
    """Talk with a person until they leave; what goes wrong is one line and the talk goes on."""
    history = History()
    _set_up_keys(prompt, history, Completer(ask))
    goes_on = True
    while goes_on:
        try:
            goes_on = _turn(prompt, history)
        except KeyboardInterrupt:  # the line is thrown away, as shells do
            echo(err=True)


def _turn(prompt: Prompt, history: History) -> bool:
    """Take a line and answer it; false when the person leaves."""
    try:
        line = _ask_for_line(f"loom {prompt.job}> " if prompt.job else "loom> ")
        history.add(line)
        said = prompt.run(line)
    except LoomError as error:
        say(one_line(str(error), _LONGEST))
        return True
    except EOFError:
        echo(err=True)
        return False
    _print(said)
    return not said.leaves


def _ask_for_line(text: str) -> str:
    if sys.stdout.isatty():
        return input(text)
    print(text, end="", file=sys.stderr, flush=True)  # what is asked for goes elsewhere
    if not (line := sys.stdin.readline()):
        raise EOFError
    return line


def _print(said: PromptAnswer) -> None:
    if said.text:
        echo(said.text)


def _set_up_keys(prompt: Prompt, history: History, completer: Completer) -> None:
    """Give the terminal's line editor the history and the Tab key; some Pythons have none."""
    if not sys.stdout.isatty():
        return
    try:
        import readline
    except ImportError:
        return
    for line in history.lines:
        readline.add_history(line)
    found: list[str] = []

    def one(text: str, number: int) -> str | None:
        if number == 0:
            found[:] = completer.complete(readline.get_line_buffer(), prompt.job)
        return _spaced(found[number]) if number < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(one)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")


def _spaced(word: str) -> str:
    """Return a completed word as it stands in the line: a value follows `=` without a space."""
    return word if word.endswith("=") else f"{word} "
