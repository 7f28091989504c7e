"""What tests of plans share: an app, its roles, hostile words, the directives of a script."""

from typing import Any

from torchloom.specs.api import AppDef, Role

APP = AppDef("app", [Role("a", "", entrypoint="echo", args=["hi"])])
HOSTILE = 'it\'s "so" $HOME `touch pwned` $(touch pwned) ; touch pwned # \\ % grüße 織機 \n\t*'


def role(name: str = "a", **fields: Any) -> Role:
    return Role(name, "", entrypoint="echo", **fields)


def options_of(cfg: dict[str, Any]) -> dict[str, Any]:
    """Return options as an engine has them: in a name, two underscores are a dot."""
    return {name.replace("__", "."): value for name, value in cfg.items()}


def directives_of(info: Any, word: str) -> list[str]:
    """Return the lines of a planned script that an engine reads, behind its word."""
    lines = info.request.script.splitlines()
    return [line.removeprefix(f"{word} ") for line in lines if line.startswith(word)]
