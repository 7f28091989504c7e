"""What `run` and `plan` are pointed at, and the options both take: from words to a dry run."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

from torchloom.components.installed import BUILTINS
from torchloom.errors import NotFound, UserError
from torchloom.launch import devices
from torchloom.runner import config
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers import DEFAULT
from torchloom.settings import environment
from torchloom.specs.api import AppDef, AppDryRunInfo, CfgVal, read_app

SPEC_ENDINGS = (".json", ".yaml", ".yml")
F = TypeVar("F", bound=Callable[..., Any])


class Kind(Enum):
    """What a person may point `run` at."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"
    COMPONENT = "component"
    SPEC = "spec"

    @property
    def is_program(self) -> bool:
        """Tell whether it stands where `python train.py` would."""
        return self in (Kind.SCRIPT, Kind.MODULE, Kind.COMMAND)


@dataclass(frozen=True, slots=True)
class Request:
    """One command line of `run` or `plan`, read."""

    words: tuple[str, ...]
    module: str | None = None
    processes: int | None = None
    scheduler: str = DEFAULT
    scheduler_args: tuple[str, ...] = ()
    workspace: str = ""
    name: str | None = None
    env: tuple[str, ...] = ()
    max_retries: int | None = None
    parent_run_id: str | None = None
    cfg: dict[str, CfgVal] = field(default_factory=dict)
    component_args: dict[str, Any] | None = None
    dry: bool = False


def target_options(function: F) -> F:
    """Add the options that say what to run, where and how."""
    options = [
        click.option("-n", "processes", type=click.IntRange(1), help="Processes on each node."),
        click.option("-s", "--scheduler", help="Engine; `loom engines` lists them."),
        click.option(
            "-cfg",
            "--scheduler_args",
            "--scheduler-args",
            multiple=True,
            metavar="K=V,..",
            help="Options of the engine.",
        ),
        click.option("--workspace", metavar="DIR", help="Run in a copy of this folder."),
        click.option("--name", help="Name of the job; default: the script's."),
        click.option(
            "-e", "--env", multiple=True, metavar="K=V", help="Variable; K alone copies ours."
        ),
        click.option("--max-retries", type=click.IntRange(0), help="Starts after a failure."),
        click.option("--parent_run_id", "--parent-run-id", hidden=True),
        click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does."),
        click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TARGET [ARGS]..."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


class TargetCommand(click.Command):
    """Options before the target are ours, everything after it is the target's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {"allow_interspersed_args": False}
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop reading our options at `-m MODULE`: what follows is the module's."""
        place = self._place_of_module(args)
        if place is not None and len(args) > place + 2:
            args = [*args[: place + 2], "--", *args[place + 2 :]]
        return super().parse_args(ctx, args)

    def _place_of_module(self, args: list[str]) -> int | None:
        flags = {
            flag: parameter.is_flag
            for parameter in self.params
            if isinstance(parameter, click.Option)
            for flag in parameter.opts
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            if args[place] == "-m":
                return place
            takes_word = "=" not in args[place] and flags.get(args[place]) is False
            place += 2 if takes_word else 1
        return None


def request_from(options: dict[str, Any]) -> Request:
    """Fill in what the config files say about `run`."""
    defaults = config.get_configs("cli", "run")
    words = options["words"]
    if not words and not options["module"] and (chosen := defaults.get("component")):
        words = (chosen,)
    known = {key: options[key] for key in Request.__slots__ if key in options}
    return Request(
        **{
            **known,
            "words": words,
            "scheduler": options["scheduler"] or defaults.get("scheduler") or DEFAULT,
            "workspace": options["workspace"] or defaults.get("workspace") or "",
        }
    )


def dryrun(request: Request, runner: Runner | None = None) -> AppDryRunInfo[Any]:
    """Return what would be submitted."""
    runner = runner or get_runner()
    app = build_app(request, runner)
    cfg = {**runner.cfg_from_str(request.scheduler, *request.scheduler_args), **request.cfg}
    return runner.dryrun(
        app, request.scheduler, cfg, request.workspace or None, request.parent_run_id
    )


def kind_of(request: Request) -> Kind:
    """Return what the words mean; what is nothing else must be a component."""
    if request.module:
        return Kind.MODULE
    if not request.words:
        raise UserError("nothing to run: name a script, a component or a spec file")
    target = request.words[0]
    place, _, function = target.rpartition(".")
    if request.component_args is not None or function in BUILTINS.get(place, ()):
        return Kind.COMPONENT
    if target.endswith(SPEC_ENDINGS):
        return Kind.SPEC
    if target.endswith(".py"):
        return Kind.SCRIPT
    return Kind.COMMAND if shutil.which(target) else Kind.COMPONENT


def build_app(request: Request, runner: Runner) -> AppDef:
    """Return the app that the words mean."""
    kind, (target, *rest) = kind_of(request), request.words or ("",)
    match kind:
        case Kind.COMPONENT:
            given = request.component_args
            app = runner.build(target, rest if given is None else given)
        case Kind.SPEC:
            _refuse_arguments(target, rest)
            app = read_app(target)
        case _:
            app = _program(request, kind)
    return _with_options(app, request)


def _program(request: Request, kind: Kind) -> AppDef:
    """Return a program under our own agent; its words arrive as they were written."""
    from torchloom.components.dist import loom

    words = request.words
    if kind is Kind.SCRIPT and not Path(words[0]).is_file():
        raise NotFound("file", words[0], _scripts_near(words[0]))
    return loom(
        *(words[1:] if kind is Kind.SCRIPT else words),
        script=words[0] if kind is Kind.SCRIPT else None,
        m=request.module,
        j=str(request.processes or "auto"),
        python=_python(),
    )


def _with_options(app: AppDef, request: Request) -> AppDef:
    if request.name:
        app.name = request.name
    for role in app.roles:
        role.env.update(_variables(request.env))
        if request.max_retries is not None:
            role.max_retries = request.max_retries
    return app


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    inherited = environment()
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or (not equals and key not in inherited):
            raise UserError(f"--env {pair!r}: write K=V, or the name of a variable that is set")
        found[key] = value if equals else inherited[key]
    return found


def _python() -> str:
    """Return the interpreter that `python` means to whoever typed `loom`.

    Called from the search path, that is the search path's python; called by a path of its own,
    as in `.venv/bin/loom`, it is the one that loom itself runs on.
    """
    folders = environment().get("PATH", "").split(os.pathsep)
    if os.path.dirname(os.path.abspath(sys.argv[0])) in map(os.path.abspath, folders):
        return "python" if shutil.which("python") else sys.executable
    return sys.executable


def count(processes: int) -> str:
    """Return a number of processes in words."""
    return "1 process" if processes == 1 else f"{processes} processes"


def processes_in_words(request: Request) -> str:
    """Say how many processes `run` starts, and why so many."""
    if request.processes:
        return count(request.processes)
    found = len(devices.visible(environment()))
    if found > 1:
        return f"{found} processes, one for each accelerator"
    return "1 process, on the only accelerator" if found else "1 process, no accelerator found"


def _refuse_arguments(target: str, rest: Sequence[str]) -> None:
    if rest:
        raise UserError(f"{target} is a spec file and takes no arguments: {' '.join(rest)!r}")


def _scripts_near(target: str) -> list[str]:
    folder = Path(target).parent
    return [str(path) for path in folder.glob("*.py")] if folder.is_dir() else []
