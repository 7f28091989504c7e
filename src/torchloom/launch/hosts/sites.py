"""What is special about a site, as a table that users extend: bindings, networks, noise."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from torchloom.errors import UserError
from torchloom.specs.dataclass import dataclass

BUILT_IN = Path(__file__).with_name("sites.toml")
WORDS: Mapping[type[Any], str] = {int: "a number", str: "a string", list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True)
class SiteField:
    """A field of an entry: what it must be, and what it does."""

    kind: type[Any]
    meaning: str


FIELDS: Mapping[str, SiteField] = {
    "match": SiteField(
        dict,
        "Where the entry applies: `hosts`, a regular expression for the whole host name; `env`, a"
        " table of variables and expressions for their values. All must match",
    ),
    "gpus_per_host": SiteField(int, "GPUs of a host. Not used yet; set `NGPU_PER_HOST`"),
    "cpu_bind": SiteField(str, "Binding of ranks to cores, in the format of the launcher"),
    "address": SiteField(str, "How peers reach a host; `{host}` stands for its name"),
    "modules": SiteField(list, "Environment modules that are loaded before ranks start"),
    "flags": SiteField(list, "Further options for the native launcher"),
    "env": SiteField(dict, "Variables of the ranks"),
    "noise": SiteField(list, "Expressions for whole output lines that `loom launch` hides"),
}


class BadSite(UserError):
    """An entry of a site table that cannot be used."""

    code = "bad_site"

    def __init__(self, site: str, why: str) -> None:
        super().__init__(f"site {site!r}: {why}; docs/reference/config-files.md has the fields")


@dataclass(frozen=True, slots=True)
class Site:
    """One entry. A site that matches nothing is never chosen."""

    name: str
    hosts: str = ""  # a regular expression for the whole host name
    where: Mapping[str, str] = field(default_factory=dict)  # variable -> expression for its value
    gpus_per_host: int | None = None
    cpu_bind: str = ""
    address: str = "{host}"  # how peers reach a host on the fast network
    modules: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    noise: tuple[str, ...] = ()

    def matches(self, host: str, env: Mapping[str, str]) -> bool:
        """Whether this host, with these variables, is at the site."""
        if not self.hosts and not self.where:
            return False
        if self.hosts and not re.fullmatch(self.hosts, host):
            return False
        return all(re.fullmatch(form, env.get(name, "")) for name, form in self.where.items())


NOWHERE = Site("")


def read_sites(texts: Sequence[str]) -> tuple[Site, ...]:
    """Read tables in order, the built-in one first; a later entry replaces one of its name."""
    import tomllib

    sites: dict[str, Site] = {}
    for text in [BUILT_IN.read_text(), *texts]:
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadSite("?", f"the table is not TOML: {error}") from error
        sites |= {name: _site(name, entry) for name, entry in table.items()}
    return tuple(sites.values())


def site_of(host: str, env: Mapping[str, str], own: Path) -> Site:
    """Return where a host is, by the built-in table and a file of the user's if there is one."""
    texts = [own.read_text()] if own.exists() else []
    return find_site(read_sites(texts), host, env)


def find_site(sites: Sequence[Site], host: str, env: Mapping[str, str]) -> Site:
    """Return where we are; the user's entries are asked before the built-in ones."""
    return next((site for site in reversed(sites) if site.matches(host, env)), NOWHERE)


class NoiseFilter:
    """Hide a site's known noise, and count what was hidden."""

    def __init__(self, patterns: Sequence[str], site: str = "") -> None:
        self._site = site
        self._any = re.compile("|".join(f"(?:{each})" for each in patterns)) if patterns else None
        self.hidden = 0

    def keeps(self, line: bytes) -> bool:
        """Whether a line is shown; one that is not is counted."""
        text = line.rstrip(b"\r\n").decode(errors="replace")
        if self._any is None or not self._any.fullmatch(text):
            return True
        self.hidden += 1
        return False

    @property
    def note(self) -> str:
        """What to say at the end; nothing when nothing was hidden."""
        if not self.hidden:
            return ""
        lines = "line" if self.hidden == 1 else "lines"
        return f"{self.hidden} {lines} of known noise hidden (site {self._site}); the logs have all"


def _site(name: str, entry: Any) -> Site:
    if not isinstance(entry, dict):
        raise BadSite(name, "it must be a table")
    fields = {key: _value(name, key, value) for key, value in entry.items()}
    match = fields.pop("match", {})
    if unknown := match.keys() - {"hosts", "env"}:
        raise BadSite(name, f"unknown field {sorted(unknown)[0]!r} in match")
    site = Site(name, match.get("hosts", ""), match.get("env", {}), **fields)
    for pattern in [site.hosts, *site.where.values(), *site.noise]:
        _check(name, pattern)
    return site


def _value(name: str, key: str, value: Any) -> Any:
    if key not in FIELDS:
        raise BadSite(name, f"unknown field {key!r}")
    if not isinstance(value, FIELDS[key].kind):
        raise BadSite(name, f"{key} must be {WORDS[FIELDS[key].kind]}, not {value!r}")
    if key == "env" and isinstance(value, dict):
        return {variable: str(text) for variable, text in value.items()}
    return tuple(map(str, value)) if isinstance(value, list) else value


def _check(name: str, pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise BadSite(name, f"match must contain strings, not {pattern!r}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadSite(name, f"{pattern!r} is not a regular expression: {error}") from error
