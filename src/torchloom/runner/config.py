"""Config files, in TorchX's INI format: `.loomconfig` and `.torchxconfig`, project before home.

The first file that has a key decides it. `SECTIONS` and the names of the engines are its sections.
"""

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchloom import settings
from torchloom.errors import UserError
from torchloom.schedulers import get_scheduler_factories, get_scheduler_factory
from torchloom.specs.api import (
    CfgVal,
    UnknownSchedulerException,
    get_type_name,
    runopt,
    runopts,
)

if TYPE_CHECKING:
    from configparser import ConfigParser

FILE_NAMES = (".loomconfig", ".torchxconfig")
SECTIONS: Mapping[str, str] = {
    "component:NAME": "Defaults of the arguments of a component, for `loom run` and `loom plan`",
    "cli:run": "For `loom run`: `scheduler`, `workspace`, `component` (if none is named)",
    "torchx:tracker": "The trackers of a run: a key for each, without a value",
    "tracker:NAME": "`config`: what the tracker of that name is given",
}
_NONE = "None"  # how the INI format writes Python's None


class ConfigFileError(UserError):
    """A config file that cannot be read or understood."""

    code = "bad_config_file"


def default_dirs() -> list[str]:
    """Return where config files are looked for: this folder, then the user's home."""
    return [os.getcwd(), str(Path.home())]


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """Return the config files that count, the most important first.

    `LOOMCONFIG` (or `TORCHXCONFIG`) names the only one; an empty value means none at all.
    """
    chosen = settings.config_file()
    if chosen is not None:
        if chosen and not Path(chosen).is_file():
            raise ConfigFileError(
                f"LOOMCONFIG (or TORCHXCONFIG) names {chosen!r}, which is not a file;"
                " fix or unset it"
            )
        return [chosen] if chosen else []
    paths = (Path(folder, name) for folder in dirs or default_dirs() for name in FILE_NAMES)
    return list(dict.fromkeys(str(path) for path in paths if path.is_file()))


def read(path: str) -> "ConfigParser":
    """Parse one file; keys keep their case and values their `%`."""
    try:
        with open(path, encoding="utf-8") as file:
            return _parse(file, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"{path}: {error}") from error


def apply(
    scheduler: str,
    cfg: MutableMapping[str, CfgVal],
    dirs: Iterable[str] | None = None,
    options: runopts | None = None,
) -> None:
    """Fill in the run options that the caller left open; `options` lists those there are."""
    for path in find_configs(dirs):
        _fill(scheduler, read(path), cfg, path, options)


def load(scheduler: str, f: TextIO, cfg: MutableMapping[str, CfgVal]) -> None:
    """Fill in the run options from an open config file."""
    name = getattr(f, "name", "config")
    _fill(scheduler, _parse(f, name), cfg, name)


def load_sections(prefix: str, dirs: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """Return all `[prefix:NAME]` sections as {NAME: {key: value}}."""
    found: dict[str, dict[str, str]] = {}
    for path in find_configs(dirs):
        parser = read(path)
        for section in parser.sections():
            kind, colon, name = section.partition(":")
            if colon and name and kind == prefix:
                found[name] = {**dict(parser.items(section)), **found.get(name, {})}
    return found


def get_configs(prefix: str, name: str, dirs: Iterable[str] | None = None) -> dict[str, str]:
    """Return one `[prefix:name]` section, all files taken together."""
    return load_sections(prefix, dirs).get(name, {})


def get_config(prefix: str, name: str, key: str, dirs: Iterable[str] | None = None) -> str | None:
    """Return one value, or nothing."""
    return get_configs(prefix, name, dirs).get(key)


def dump(f: TextIO, schedulers: Iterable[str] | None = None, required_only: bool = False) -> None:
    """Write a section a scheduler (of all, when none is named), ready to be edited."""
    parser = _parser()
    for scheduler in schedulers or get_scheduler_factories():
        parser.add_section(scheduler)
        for name, option in _options(scheduler):
            if option.is_required:
                wanted = get_type_name(option.opt_type)
                parser.set(scheduler, name, f"#FIXME:({wanted}) {option.help}")
            elif not required_only:
                parser.set(scheduler, name, _as_text(option.default))
    parser.write(f)


def origins(dirs: Iterable[str] | None = None) -> list[tuple[str, str, str, str]]:
    """Return every value that counts, as (section, key, value, file)."""
    rows: dict[tuple[str, str], tuple[str, str]] = {}
    for path in find_configs(dirs):
        parser = read(path)
        for section in parser.sections():
            for key, value in parser.items(section):
                rows.setdefault((section, key), (value, path))
    return [(section, key, *found) for (section, key), found in rows.items()]


def _parse(file: TextIO, path: str) -> "ConfigParser":
    from configparser import Error

    parser = _parser()
    try:
        parser.read_file(file, path)
    except Error as error:
        reason = " ".join(str(error).split())
        raise ConfigFileError(f"{path}: {reason}") from error
    return parser


def _fill(
    scheduler: str,
    parser: "ConfigParser",
    cfg: MutableMapping[str, CfgVal],
    path: str,
    options: runopts | None = None,
) -> None:
    if not parser.has_section(scheduler):
        return
    import logging

    known = options if options is not None else _options(scheduler)
    given = {known.canonical_key(key) for key in cfg}
    for spelled, text in parser.items(scheduler):
        key = known.canonical_key(spelled)
        option = known.get(spelled)
        if key is None or option is None:
            complaint = "%s: [%s] %s: %s has no such option"
            logging.getLogger(__name__).warning(complaint, path, scheduler, spelled, scheduler)
        elif key not in given:
            cfg[key] = _cast(option, text, f"{path}: [{scheduler}] {spelled}")


def _cast(option: runopt, text: str, where: str) -> CfgVal:
    if text == _NONE:
        return None
    try:
        return option.cast_to_type(text)
    except ValueError as error:
        raise ConfigFileError(f"{where}: {error}") from error


def _options(scheduler: str) -> runopts:
    factory = get_scheduler_factory(scheduler)
    if factory is None:
        raise UnknownSchedulerException(scheduler, get_scheduler_factories())
    return factory("config").run_opts()


def _as_text(value: CfgVal) -> str:
    if isinstance(value, list):
        return ";".join(value)
    if isinstance(value, dict):
        return ";".join(f"{key}:{item}" for key, item in value.items())
    return str(value)


def _parser() -> "ConfigParser":
    from configparser import ConfigParser

    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    return parser
