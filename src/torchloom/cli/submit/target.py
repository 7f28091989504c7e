"""The target of `run` and `plan`: from words to an app, and from an app to a dry run."""

import os
import sys
from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from torchloom.components.catalog import BUILTINS
from torchloom.errors import NotFound, UserError, shorten
from torchloom.launch.host import devices
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.shim import CHOICE as SHIM_CHOICE
from torchloom.runner.api import Runner
from torchloom.schedulers import DEFAULT, LOCAL
from torchloom.settings import environment
from torchloom.specs.api import NULL_RESOURCE, AppDef, AppDryRunInfo, CfgVal, app_to_dict
from torchloom.specs.dataclass import dataclass

SPEC_ENDINGS = (".json", ".yaml", ".yml")
_TORCHRUN = "torch.distributed.run"


class TargetKind(Enum):
    """The kinds of targets."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"
    COMPONENT = "component"
    SPEC = "spec"

    @property
    def is_program(self) -> bool:
        """Tell whether it stands in for `python train.py`."""
        return self in (TargetKind.SCRIPT, TargetKind.MODULE, TargetKind.COMMAND)


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """One parsed command line of `run` or `plan`."""

    words: tuple[str, ...]
    module: str | None = None
    processes: int | None = None
    per_node: int | None = None
    scheduler: str = DEFAULT
    scheduler_args: tuple[str, ...] = ()
    workspace: str = ""
    name: str | None = None
    env: tuple[str, ...] = ()
    max_retries: int | None = None
    parent_run_id: str | None = None
    cfg: dict[str, CfgVal] = field(default_factory=dict)
    defaults: dict[str, CfgVal] = field(default_factory=dict)  # of the engine, from a spec file
    component_args: dict[str, Any] | None = None
    dry: bool = False
    role: str | None = None
    kind: TargetKind | None = None  # set if it need not be derived from the words


def dryrun(request: TargetRequest, runner: Runner) -> AppDryRunInfo[Any]:
    """Return what would be submitted."""
    app = build_app(request, runner)
    given = runner.cfg_from_str(request.scheduler, *request.scheduler_args)
    cfg = {**request.defaults, **given, **request.cfg}
    return runner.dryrun(
        app, request.scheduler, cfg, request.workspace or None, request.parent_run_id
    )


def dryrun_shape(scheduler: str, info: AppDryRunInfo[Any]) -> dict[str, Any]:
    """Return a dry run as JSON."""
    request = getattr(info.request, "launch", info.request)
    return {
        "scheduler": scheduler,
        "app": app_to_dict(info.app) if info.app else None,
        "cfg": dict(info.cfg),
        "request": repr(info),
        "notes": list(getattr(request, "notes", ())),
    }


def settled(request: TargetRequest) -> TargetRequest:
    """Return a request with the engine and options of its spec file, unless an engine was given.

    A command line of torchrun for this host becomes the same ranks, started by our launcher.
    """
    if (words := _torchrun_words(request)) is not None:
        return _as_torchrun(request, words)
    if kind_of(request) is not TargetKind.SPEC or request.scheduler != DEFAULT:
        return request
    from torchloom.specs.jobspec import JobSpec
    from torchloom.specs.serialize import read_spec

    spec = read_spec(request.words[0])
    if not isinstance(spec, JobSpec) or spec.scheduler in LOCAL:
        return request
    policy = {"policy": str(spec.recovery.policy)} if spec.recovery.policy else {}
    return replace(request, scheduler=spec.scheduler, defaults={**policy, **spec.options})


def _torchrun_words(request: TargetRequest) -> tuple[str, ...] | None:
    """Return what torchrun is asked, with its interpreter first if one is named; none if it is not.

    Torch's own launcher runs where `LOOM_TORCHRUN=real` or a number of processes is given.
    """
    words, module = request.words, request.module
    env = {**environment(), **variables_of(request.env)}
    is_counted = request.processes is not None or request.per_node is not None
    if (
        is_counted
        or request.kind
        or request.scheduler not in LOCAL
        or env.get(SHIM_CHOICE) == "real"
    ):
        return None
    if module is not None:
        return ("", *words) if module == _TORCHRUN else None
    if words[:1] == ("torchrun",):
        return ("", *words[1:])
    is_module = words[1:3] == ("-m", _TORCHRUN) and PythonCommand.parse(words) is not None
    return (words[0], *words[3:]) if is_module else None


def _as_torchrun(request: TargetRequest, words: tuple[str, ...]) -> TargetRequest:
    """Return the request for the ranks that torchrun would start, if all of them are on this host.

    With several hosts, the ranks are those of a launch inside the job.
    """
    from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand

    interpreter, *options = words
    command = LaunchCommand.parse([AS_TORCHRUN, *options], environment())
    ranks, program, module = command.per_node, command.words, command.module
    if not isinstance(ranks, int) or (command.nodes is not None and command.nodes.most > 1):
        return request
    kind = TargetKind.MODULE if module else TargetKind.SCRIPT
    if interpreter:
        program, module = (interpreter, *(("-m", module) if module else ()), *program), None
    if interpreter or command.no_python:
        kind = TargetKind.COMMAND
    retries = command.max_restarts if request.max_retries is None else request.max_retries
    return replace(
        request, words=program, module=module, processes=ranks, max_retries=retries, kind=kind
    )


def kind_of(request: TargetRequest) -> TargetKind:
    """Return the kind of the target; anything unknown is taken for a component."""
    if request.kind:
        return request.kind
    if request.module:
        return TargetKind.MODULE
    if not request.words:
        raise UserError("nothing to run: name a script, a component or a spec file")
    target = request.words[0]
    place, _, function = target.rpartition(".")
    if request.component_args is not None or function in BUILTINS.get(place, ()):
        return TargetKind.COMPONENT
    if target.endswith(SPEC_ENDINGS):
        return TargetKind.SPEC
    if target.endswith(".py"):
        return TargetKind.SCRIPT
    return TargetKind.COMMAND if _is_on_path(target) else TargetKind.COMPONENT


def _is_on_path(command: str) -> bool:
    import shutil

    return shutil.which(command) is not None


def build_app(request: TargetRequest, runner: Runner) -> AppDef:
    """Build the app of a request."""
    kind = kind_of(request)
    if kind.is_program:
        return _with_options(_program(request, kind), request)
    if request.processes or request.per_node:
        raise UserError("-n is for scripts, modules and commands; components take -j")
    target, *rest = request.words
    if kind is TargetKind.COMPONENT:
        _refuse_nearly_script(target)
        given = request.component_args
        return _with_options(runner.build(target, rest if given is None else given), request)
    from torchloom.components.job import app_of
    from torchloom.specs.serialize import read_spec

    if rest:
        raise UserError(f"{target} is a spec file and takes no arguments: {shorten(rest[0])!r}")
    spec = read_spec(target)
    app = spec if isinstance(spec, AppDef) else app_of(spec, python_of_caller())
    return _with_options(app, request)


def _program(request: TargetRequest, kind: TargetKind) -> AppDef:
    """Return the app of a program; its arguments are passed unchanged."""
    from torchloom.components.dist import loom

    words = request.words
    if kind is TargetKind.SCRIPT and not os.path.isfile(words[0]):
        raise NotFound("file", words[0], _scripts_near(words[0]))
    app = loom(
        *(words[1:] if kind is TargetKind.SCRIPT else words),
        script=words[0] if kind is TargetKind.SCRIPT else None,
        m=request.module,
        j=_topology(request),
        python=python_of_caller(),
    )
    if request.scheduler not in LOCAL:  # no resources were given: use the engine's defaults
        app.roles[0].resource = NULL_RESOURCE
    return app


def _topology(request: TargetRequest) -> str:
    """Return `-n` and `--ppn` in the format of `-j`."""
    total, each = request.processes, request.per_node
    if each is None:
        return str(total or "auto")
    if total is None or total <= each:
        return str(total or each)
    nodes, rest = divmod(total, each)
    if rest:
        raise UserError(f"-n {total} is not a multiple of --ppn {each}; change one of them")
    if request.scheduler in LOCAL:
        raise UserError(
            f"-n {total} with --ppn {each} needs {nodes} hosts; name an engine that has them, "
            "such as -s slurm, or use `loom launch --hostfile`"
        )
    return f"{nodes}x{each}"


def _refuse_nearly_script(target: str) -> None:
    script = f"{target}.py"
    if target and os.path.isfile(script):
        raise NotFound("command or component", target, [script])


def _with_options(app: AppDef, request: TargetRequest) -> AppDef:
    if request.name is not None:
        app.name = request.name
    variables = variables_of(request.env)
    for role in app.roles:
        role.name = request.role or role.name
        role.env.update(variables)
        if request.max_retries is not None:
            role.max_retries = request.max_retries
    return app


def variables_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return the variables of `-e`; `$` is escaped so that macros are not expanded."""
    inherited = environment()
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or (not equals and key not in inherited):
            problem = "write K=V, or the name of a variable that is set"
            raise UserError(f"--env {shorten(pair)!r}: {problem}")
        found[key] = (value if equals else inherited[key]).replace("$", "$$")
    return found


def python_of_caller() -> str:
    """Return the interpreter that `python` means to the caller of `loom`.

    If `loom` was found on PATH, that is the `python` on PATH; if it was called by a path, as in
    `.venv/bin/loom`, it is the interpreter that runs loom.
    """
    folders = environment().get("PATH", "").split(os.pathsep)
    if os.path.dirname(os.path.abspath(sys.argv[0])) in map(os.path.abspath, folders):
        return "python" if _is_on_path("python") else sys.executable
    return sys.executable


def count(processes: int) -> str:
    """Return a number of processes as text."""
    return "1 process" if processes == 1 else f"{processes} processes"


def processes_in_words(request: TargetRequest) -> str:
    """Return how many processes `run` starts, and why."""
    if request.processes:
        return count(request.processes)
    found = len(devices.visible(environment()))
    if found > 1:
        return f"{found} processes, one for each accelerator"
    return "1 process, on the only accelerator" if found else "1 process, no accelerator found"


def _scripts_near(target: str) -> list[str]:
    folder = os.path.dirname(target)
    return [str(path) for path in Path(folder).glob("*.py")] if os.path.isdir(folder or ".") else []
