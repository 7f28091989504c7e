"""The prompt without a screen: one command, the lines of a pipe, or an interactive prompt."""

import sys

from torchloom.cli.monitor.prompt import Ask, Prompt, PromptAnswer
from torchloom.cli.monitor.prompt_input import Completer, History
from torchloom.cli.output import echo, one_line, say
from torchloom.errors import LoomError

_LONGEST = 1000  # characters of a message


def once(prompt: Prompt, words: list[str]) -> None:
    """Run one command; errors are raised."""
    _print(prompt.run_words(words))


def from_pipe(prompt: Prompt) -> None:
    """Run the lines of standard input up to the first that fails: the rest may depend on it."""
    for line in sys.stdin:
        answer = prompt.run(line)
        _print(answer)
        if answer.leaves:
            return


def converse(prompt: Prompt, ask: Ask) -> None:
    """Read and run lines until the user quits; an error prints one line."""
    history = History()
    _set_up_keys(prompt, history, Completer(ask))
    is_running = True
    while is_running:
        try:
            is_running = _turn(prompt, history)
        except KeyboardInterrupt:  # the line is discarded, as in a shell
            echo(err=True)


def _turn(prompt: Prompt, history: History) -> bool:
    """Read a line and run it; return False when the user quits."""
    try:
        line = _ask_for_line(f"loom {prompt.job}> " if prompt.job else "loom> ")
        history.add(line)
        answer = prompt.run(line)
    except LoomError as error:
        say(one_line(str(error), _LONGEST))
        return True
    except EOFError:
        echo(err=True)
        return False
    _print(answer)
    return not answer.leaves


def _ask_for_line(text: str) -> str:
    if sys.stdout.isatty():
        return input(text)
    print(text, end="", file=sys.stderr, flush=True)  # stdout is redirected
    if not (line := sys.stdin.readline()):
        raise EOFError
    return line


def _print(answer: PromptAnswer) -> None:
    if answer.text:
        echo(answer.text)


def _set_up_keys(prompt: Prompt, history: History, completer: Completer) -> None:
    """Set up history and Tab completion in readline; some Pythons have no readline."""
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
    """Return a completed word with a space, unless a value follows its `=`."""
    return word if word.endswith("=") else f"{word} "
