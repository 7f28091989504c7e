"""`loom monitor`: a live screen of jobs, ranks and curves; a prompt without a terminal."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import say
from torchloom.errors import UserError
from torchloom.settings import environment


@click.command(
    "monitor",
    cls=LoomCommand,
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "loom monitor gpt",
        "loom monitor -j gpt set lr=0.03    # one command, without the screen",
        "echo jobs | loom monitor",
    ),
)
@click.argument("words", nargs=-1, metavar="[WORD ...]")
@click.option("-j", "--job", default="", metavar="JOB", help="Default job of the commands.")
@click.option("--plain", is_flag=True, help="Use a prompt instead of the screen.")
def command(words: tuple[str, ...], job: str, plain: bool) -> int:
    """Watch and control the jobs of the plane; `monitor JOB` selects a job.

    On a terminal this is a full-screen view. With WORDs, such as `jobs`, `set lr=0.03` or
    `devices`, it runs that one command and exits; `loom monitor help` lists the commands. In a
    pipe it reads one command per line.
    """
    from torchloom.cli.monitor import plain as simple
    from torchloom.cli.monitor.prompt import Prompt
    from torchloom.client import chosen

    ask = chosen.asker()
    if not job and (named := _only_job(words, ask)):
        job, words = named, ()
    prompt = Prompt(ask, job)
    if words:
        simple.once(prompt, list(words))
    elif not sys.stdin.isatty():
        simple.from_pipe(prompt)
    elif plain or not _has_screen(environment()):
        simple.converse(prompt, ask)
        _say_how_to_return(prompt.job)
    else:
        from torchloom.cli.monitor.app import Monitor

        screen = Monitor(ask, job)
        screen.run()
        _say_how_to_return(screen.watched)
        return screen.return_code or 0
    return 0


def _only_job(words: Sequence[str], ask: Callable[..., Any]) -> str:
    """Return the job that a single word names, unless the word is a command of the prompt."""
    from torchloom.cli.monitor.prompt import ALIASES, WORDS

    if len(words) != 1 or words[0] in (*WORDS, *ALIASES) or " " in words[0]:
        return ""
    try:
        return str(ask("job", job=words[0])["id"])
    except UserError:  # the prompt reports what is wrong with the word
        return ""


def _say_how_to_return(job: str) -> None:
    say(f"jobs keep running; `{f'loom monitor {job}'.rstrip()}` returns to them")


def _has_screen(env: Mapping[str, str]) -> bool:
    """Tell whether the terminal can show more than lines."""
    return sys.stdout.isatty() and env.get("TERM", "dumb") not in ("dumb", "")
