"""The command line of `run` and `plan`: only options before the target are parsed."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.submit.target import TargetRequest
from torchloom.errors import UserError, nearest, shorten
from torchloom.launch.grammar.values import policy
from torchloom.runner import config
from torchloom.schedulers import DEFAULT

_FIELDS: Mapping[str, type] = {
    "component_name": str,
    "scheduler": str,
    "scheduler_args": dict,
    "scheduler_cfg": dict,
    "dryrun": bool,
    "wait": bool,
    "log": bool,
    "workspace": str,
    "parent_run_id": str,
    "tee_logs": bool,
    "component_args": dict,
    "component_args_str": list,
}
F = TypeVar("F", bound=Callable[..., Any])


def request_from_stdin(options: Mapping[str, Any], stdin: TextIO) -> TargetRequest:
    """Read the request as one JSON object; other options are refused."""
    if any(value not in (None, ()) for value in options.values()):
        raise UserError("--stdin reads the whole request; leave other options and arguments out")
    data = _checked(_read(stdin))
    words = data.get("component_args_str", [])
    return TargetRequest(
        words=(data["component_name"], *words),
        component_args=None if words else data.get("component_args", {}),
        scheduler=data.get("scheduler") or DEFAULT,
        cfg={**data.get("scheduler_args", {}), **data.get("scheduler_cfg", {})},
        workspace=data.get("workspace", ""),
        parent_run_id=data.get("parent_run_id"),
        dry=data.get("dryrun", False),
    )


def _read(stdin: TextIO) -> dict[str, Any]:
    try:
        data = json.load(stdin)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--stdin: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"--stdin: expected an object, got {type(data).__name__}")
    return data


def _checked(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null, after checks of names and types."""
    given = {key: value for key, value in data.items() if value is not None}
    for key in data:
        if key not in _FIELDS:
            hint = nearest(key, _FIELDS) or f"known: {', '.join(_FIELDS)}"
            raise UserError(f"--stdin: unknown field {shorten(key)!r}; {hint}")
    for key, value in given.items():
        if not isinstance(value, _FIELDS[key]):
            wanted, got = _FIELDS[key].__name__, type(value).__name__
            raise UserError(f"--stdin: {key}: expected {wanted}, got {got}")
    if not given.get("component_name"):
        raise UserError("--stdin: component_name is missing")
    for index, word in enumerate(given.get("component_args_str", [])):
        if not isinstance(word, str):
            problem = f"expected str, got {type(word).__name__}"
            raise UserError(f"--stdin: component_args_str[{index}]: {problem}")
    return given


def target_options(function: F) -> F:
    """Add the options of `run` and `plan` for the target, the engine and the job."""
    options = [
        click.option("-n", "processes", type=Number(1), metavar="N", help="Number of processes."),
        click.option("--ppn", "per_node", type=Number(1), metavar="N", help="Processes per host."),
        click.option(
            "-s", "--scheduler", metavar="ENGINE", help="Engine; `loom engines` lists them."
        ),
        click.option(
            "-cfg",
            "--scheduler_args",
            "--scheduler-args",
            multiple=True,
            metavar="K=V,..",
            help="Options of the engine; `loom engines ENGINE` lists them.",
        ),
        click.option("--workspace", metavar="DIR", help="Run in a copy of this folder."),
        click.option("--name", metavar="NAME", help="Name of the job; default: from the script."),
        click.option(
            "-e",
            "--env",
            multiple=True,
            metavar="K=V",
            help="Environment variable; K alone copies its value here.",
        ),
        click.option(
            "--max-retries",
            type=Number(0),
            metavar="N",
            help="Maximum number of restarts after a failure.",
        ),
        click.option(
            "--policy",
            metavar="WORDS",
            callback=lambda ctx, param, value: value and policy("--policy", value),
            help="On a failure: live, restart, shrink or fail; nan=notify|restart|fail.",
        ),
        click.option("--parent_run_id", "--parent-run-id", hidden=True),
        click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does."),
        click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TARGET [ARGS]..."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


class TargetCommand(LoomCommand):
    """A command that parses no options after its target: they belong to the target."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {"allow_interspersed_args": False}
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop parsing options at `-m MODULE`: what follows belongs to the module."""
        end = self._end_of_module(args)
        return super().parse_args(ctx, args if end is None else [*args[:end], "--", *args[end:]])

    def _end_of_module(self, args: list[str]) -> int | None:
        """Return the index after `-m MODULE`, if a module is named."""
        options = [option for option in self.params if isinstance(option, click.Option)]
        with_value = {flag for option in options if not option.is_flag for flag in option.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            end = place + (2 if args[place] in with_value else 1)
            if args[place][:2] == "-m" or args[place] == "--module":
                return min(end, len(args))
            place = end
        return None


def request_from(options: dict[str, Any]) -> TargetRequest:
    """Return the request of a command line; config files supply the defaults."""
    defaults = config.get_configs("cli", "run")
    given = {name: options[name] for name in TargetRequest.__slots__ if name in options}
    given["scheduler"] = options["scheduler"] or defaults.get("scheduler") or DEFAULT
    if options.get("policy"):
        given["cfg"] = {"policy": options["policy"]}
    given["workspace"] = options["workspace"] or defaults.get("workspace") or ""
    if not options["words"] and not options["module"] and "component" in defaults:
        given["words"] = (defaults["component"],)
    return TargetRequest(**given)
