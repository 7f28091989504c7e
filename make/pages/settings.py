"""Pages of what a user may set: environment variables, fields of a job file."""

import enum
import inspect
from collections.abc import Mapping
from pathlib import Path

from pages import python
from pages.text import code, escaped, fence, section, table

from torchloom.doctor.variables import VARIABLES, VariableGroup
from torchloom.launch.hosts import sites
from torchloom.rules import retention
from torchloom.runner import config
from torchloom.schedulers import engines, get_scheduler_factories, get_scheduler_factory
from torchloom.specs import jobspec
from torchloom.specs.api import runopts
from torchloom.weaver.store import daily_backup

_JOBSPEC = "torchloom.specs.jobspec"
_EXAMPLE = Path("examples/jobs/mnist-ddp-demo.yaml")
_SCRIPT = """\
name: fine-tune
script: train.py
args: ["--epochs", "3"]
env: {HF_HOME: /data/hf}
resources: {workers: 4, gpus_per_worker: 1, cpus_per_worker: 8}
checkpointing: {enabled: true, every_n_steps: 500, store: /data/checkpoints, best: loss}
recovery: {policy: live, attempts: 5}
elastic: {min: 2, max: 4}
knobs:
  lr: {value: 0.001, min: 0, max: 0.1}
project: demo
tags: [first]"""
_GROUPS = {
    VariableGroup.CONTRACT: "The launcher sets these for the ranks of a job. A job must not.",
    VariableGroup.INTERNAL: "Listed so that their names are known. Do not set them.",
}

_CONFIG_FILES = """\
`.loomconfig` and TorchX's `.torchxconfig` are INI files. They are read from the working folder and
from your home, in this order, and the first file that has a key decides it; an option of the
command line has precedence over both. `LOOMCONFIG` names the only file to read.
`loom config show --origin` prints every value with its file, `loom config init` writes a file."""
_RETENTION = """\
How long ended runs are kept; by default nothing is removed. Only the file in your home counts, or
the one that `LOOMCONFIG` names. An age is `45m`, `12h`, `90d`, `4w` or `never`. While a value is
invalid nothing is removed, and `loom doctor` names it
([clean up](../guides/clean-up.md#remove-automatically))."""
_BACKUP = """\
The backup that the plane makes every day. Only the file in your home counts, or the one that
`LOOMCONFIG` names ([back up and restore](../guides/back-up-and-restore.md))."""
_SITES = """\
`$LOOM_HOME/sites.toml` is a TOML file with a table for each site: settings of hosts that
`loom launch` and batch jobs use where the table's `match` applies. It adds to the built-in sites,
or replaces them by name ([an example](../guides/add-a-backend-or-launcher-flag.md))."""

_ENGINES = """\
These are also the options of `-cfg` and of a job file's `options`. `.*` stands for any option of
the scheduler's own command. `loom engines NAME` prints them, those of installed plugins too."""
_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def environment() -> str:
    """Return the page of environment variables."""
    parts = []
    for group in VariableGroup:
        rows = [each for each in VARIABLES if each.group is group]
        parts += [
            f"## {group}",
            _GROUPS.get(group, ""),
            table(
                ("variable", "meaning", "default", "read by"),
                [
                    (code(each.name), escaped(each.meaning), escaped(each.default), each.reader)
                    for each in rows
                ],
            ),
        ]
    return section(
        "# Environment variables",
        "Variables that are not set have the default. A plane has the variables of the shell that"
        " started it;"
        " `loom down` and a new start change them. `loom doctor` finds misspelt names.",
        *parts,
    )


def config_files() -> str:
    """Return the page of what config files may contain."""
    kept = ("key", "default", "meaning")
    names = engines(get_scheduler_factories())
    return section(
        "# Config files",
        _CONFIG_FILES,
        "## Sections",
        table(
            ("section", "has"),
            [
                ("`[ENGINE]`", "Options of an engine, as `-cfg` takes them: [below](#engines)"),
                *((code(f"[{name}]"), meaning) for name, meaning in config.SECTIONS.items()),
                ("`[retention]`", "How long ended runs are kept: [below](#retention)"),
                ("`[backup]`", "The daily backup of the plane: [below](#backup)"),
            ],
        ),
        "## retention",
        _RETENTION,
        table(kept, _keys(retention.KEYS)),
        "## backup",
        _BACKUP,
        table(kept, _keys(daily_backup.KEYS)),
        "## sites.toml",
        _SITES,
        table(
            ("field", "type", "meaning"),
            [
                (code(name), sites.WORDS[field.kind].removeprefix("a "), f"{field.meaning}.")
                for name, field in sites.FIELDS.items()
            ],
        ),
        f"Built in: {', '.join(code(each.name) for each in sites.read_sites(()))}.",
        "## Engines",
        _ENGINES,
        *(section(f"### {name}", _engine(name)) for name in names),
    )


def _keys(keys: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    return [(code(key), code(value), f"{text}.") for key, (value, text) in keys.items()]


def _engine(name: str) -> str:
    factory = get_scheduler_factory(name)
    assert factory is not None
    opts: runopts = factory("reference").run_opts()
    rows = [
        (code(key), _WORDS.get(each.opt_type, "list"), _of_option(each.default), _help(each.help))
        for key, each in opts
    ]
    return table(("option", "type", "default", "meaning"), rows)


def _help(text: str) -> str:
    return escaped(f"{text[:1].upper()}{text[1:]}.")


def _of_option(default: object) -> str:
    return "" if default in (None, "") else code(str(default))


def job_spec(root: Path) -> str:
    """Return the page of the fields of a job file."""
    classes = [each for each in _parts() if each is not jobspec.JobSpec]
    example = (root / _EXAMPLE).read_text().partition("name:")
    return section(
        "# Job file",
        "A job file is YAML or JSON. `loom run job.yaml` submits it, `loom plan job.yaml` shows"
        " what would be submitted. Both name an invalid field, and the values it may have."
        " A file with `roles` is an app, any other a job.",
        f"{python.summary(_JOBSPEC, 'JobSpec')} Only `name` and one of these must be given.",
        _fields(jobspec.JobSpec),
        *(section(f"## {_title(each)}", _about(each), _fields(each)) for each in classes),
        "## Example: a built-in training",
        f"This is `{_EXAMPLE}`.",
        fence("yaml", f"name:{example[2]}"),
        "## Example: your own program",
        fence("yaml", _SCRIPT),
    )


def _parts() -> list[type]:
    """Return the classes of the fields in the order of the module."""
    found = [each for each in vars(jobspec).values() if inspect.isclass(each)]
    return [each for each in found if each.__module__ == _JOBSPEC and not _is_choice(each)]


def _is_choice(each: type) -> bool:
    return issubclass(each, enum.Enum)


def _title(each: type) -> str:
    owners = {
        annotation.partition(" | ")[0].removeprefix("Mapping[str, ").rstrip("]"): name
        for record in ("Distributed", "JobSpec")
        for name, annotation, _, _ in python.attributes(_JOBSPEC, record)
    }
    return owners.get(each.__name__, each.__name__)


def _about(each: type) -> str:
    return escaped(python.summary(_JOBSPEC, each.__name__))


def _fields(each: type) -> str:
    rows = [
        (code(name), _type(annotation), _default(default), doc)
        for name, annotation, default, doc in python.attributes(_JOBSPEC, each.__name__)
    ]
    assert all(doc for *_, doc in rows), f"a field of {each.__name__} has no docstring"
    return table(("field", "type", "default", "meaning"), rows)


def _type(annotation: str) -> str:
    """Return a type in the words of YAML."""
    found = getattr(jobspec, annotation.removesuffix(" | None"), None)
    if inspect.isclass(found) and _is_choice(found):
        return ", ".join(code(str(each)) for each in found)
    plain = annotation.removesuffix(" | None")
    words = {
        "str": "string",
        "int": "integer",
        "float": "number",
        "bool": "boolean",
        "tuple[str, ...]": "list of strings",
        "Mapping[str, str]": "map of strings",
        "Mapping[str, Any]": "map",
        "bool | int | float | str": "boolean, number or string",
    }
    if plain in words:
        return words[plain]
    name = plain.removeprefix("Mapping[str, ").rstrip("]")
    link = f"[{_title(getattr(jobspec, name))}](#{_title(getattr(jobspec, name))})"
    return f"map to {link}" if plain.startswith("Mapping") else link


def _default(default: str) -> str:
    if default in ("", "None", '""', "''", "()") or default.startswith("field("):
        return "" if default else "required"
    if "." in default and default.partition(".")[0].isidentifier():
        kind, _, member = default.partition(".")
        return code(str(getattr(jobspec, kind)[member]))
    if default.endswith("()"):
        return "see below"
    return code(default.strip("'").replace("True", "true").replace("False", "false"))
