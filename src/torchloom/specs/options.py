"""Options of a scheduler besides the app: typed, with defaults and help."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.errors import nearest, shorten
from torchloom.specs.exceptions import InvalidRunConfigException, InvalidRunConfigValue

QUOTED = r"""(['"])(?:\\.|(?!\1).)*?\1"""
TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})
ANY = ".*"  # the end of a key that stands for all keys which begin as it does


class cases:
    """Convert names between snake_case and camelCase."""

    @staticmethod
    def snake_to_camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(word.title() for word in rest)

    @staticmethod
    def camel_to_snake(name: str) -> str:
        return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def read_pairs(text: str) -> dict[str, str]:
    """Return the `key=value` pairs of a text.

    Pairs are separated by `,` or `;`, which may also stand inside a value: the last one before the
    next `=` ends the value. What stands in quotes is taken as it is.
    """
    if not text:
        return {}
    mask = re.sub(QUOTED, lambda quoted: "x" * len(quoted.group()), text)
    spans = list(_spans(text, mask))
    if len(spans) < 2:
        raise InvalidRunConfigValue(f"{shorten(text)!r} is not of the form key=value", "", {})
    pairs: dict[str, str] = {}
    begin, end = spans[0]
    key = text[begin:end]
    for begin, end in spans[1:-1]:
        cut = max(mask.rfind(",", begin, end), mask.rfind(";", begin, end))
        if cut <= begin or cut == end - 1:
            raise InvalidRunConfigValue(_no_cut(text[begin:end]), key, pairs)
        pairs[key] = _unquoted(text[begin:cut].strip())
        key = text[cut + 1 : end].strip()
    begin, end = spans[-1]
    return {**pairs, key: _unquoted(text[begin:end])}


def read_list(text: str) -> list[str]:
    """Return the items, separated by `,` or `;`; empty ones do not count."""
    return [item for item in text.replace(";", ",").split(",") if item]


def read_map(text: str) -> dict[str, str]:
    """Return `k:v` items as a mapping; `=` already parts the options themselves."""
    pairs = [item.partition(":") for item in read_list(text)]
    for key, colon, _ in pairs:
        if not colon:
            raise ValueError(f"{shorten(key)!r} is not of the form key:value")
    return {key: value for key, _, value in pairs}


def read_bool(text: str) -> bool:
    """Return what a config file means by true, 1, yes, on and false, 0, no, off."""
    word = text.lower()
    if word not in TRUE | FALSE:
        raise ValueError(f"{shorten(text)!r} is neither true/1/yes/on nor false/0/no/off")
    return word in TRUE


def _spans(text: str, mask: str) -> Iterator[tuple[int, int]]:
    """Yield where the non-empty parts between `=` begin and end, without blanks around them."""
    begin = 0
    for part in mask.split("="):
        end = begin + len(part)
        piece = text[begin:end]
        if piece.strip():
            left = begin + len(piece) - len(piece.lstrip())
            yield left, left + len(piece.strip())
        begin = end + 1


def _no_cut(piece: str) -> str:
    return f"{shorten(piece)!r} should be a value, a ',' or ';', and the next key before its '='"


def _unquoted(value: str) -> str:
    return value[1:-1] if re.fullmatch(QUOTED, value) else value


CfgVal = str | int | float | bool | list[str] | dict[str, str] | None


def get_type_name(tp: Any) -> str:
    """Return the short name of a type; if it has none, its text."""
    named = tp.__module__ != "typing" and hasattr(tp, "__name__")
    return str(tp.__name__) if named else str(tp)


@dataclass
class runopt:
    """An option of a scheduler."""

    default: CfgVal
    opt_type: Any
    is_required: bool
    help: str

    @property
    def is_type_list_of_str(self) -> bool:
        return _is_generic(self.opt_type, list, (str,))

    @property
    def is_type_dict_of_str(self) -> bool:
        return _is_generic(self.opt_type, dict, (str, str))

    def cast_to_type(self, value: str) -> CfgVal:
        """Return the value that this text means; ValueError if it means none."""
        if self.opt_type is bool:
            return read_bool(value)
        if self.is_type_list_of_str:
            return read_list(value)
        if self.is_type_dict_of_str:
            return read_map(value)
        if self.opt_type in (str, int, float):
            cast: CfgVal = self.opt_type(value)
            return cast
        raise ValueError(f"an option of type {self.opt_type} cannot be given as text")


class runopts:
    """The options of one scheduler, in the order they were added."""

    def __init__(self) -> None:
        self._opts: dict[str, runopt] = {}

    def add(
        self,
        cfg_key: str,
        type_: Any,
        help: str,  # noqa: A002 - TorchX's argument name
        default: CfgVal = None,
        required: bool = False,
    ) -> None:
        """Declare an option; a required one has no default."""
        if required and default is not None:
            raise ValueError(f"option {cfg_key!r} is required, so its default is never used")
        if default is not None and not runopts.is_type(default, type_):
            wanted, found = get_type_name(type_), type(default).__name__
            raise TypeError(f"option {cfg_key!r} is {wanted}, its default {default!r} is {found}")
        self._opts[cfg_key] = runopt(default, type_, required, help)

    def update(self, other: "runopts") -> None:
        """Take over the other's options; on a clash the other's wins."""
        self._opts.update(other._opts)

    def __or__(self, other: "runopts") -> "runopts":
        merged = runopts()
        merged.update(self)
        merged.update(other)
        return merged

    def __iter__(self) -> Iterator[tuple[str, runopt]]:
        return iter(self._opts.items())

    def __len__(self) -> int:
        return len(self._opts)

    def canonical_key(self, name: str) -> str | None:
        """Return the declared key that this name spells: itself, its camelCase form, or one of a
        family: where `sbatch.*` is declared, `sbatch.gres` is a key."""
        if _family(name) in self._opts and not name.endswith(ANY):
            return name
        return next((key for key in (name, cases.camel_to_snake(name)) if key in self._opts), None)

    def get(self, name: str) -> runopt | None:
        """Return the option of this name, which may be in camelCase or of a family."""
        key = self.canonical_key(name)
        return None if key is None else self._opts.get(key) or self._opts[_family(key)]

    @staticmethod
    def is_type(obj: CfgVal, tp: Any) -> bool:
        """Tell whether a value has a type, which may be `list[str]` or `dict[str, str]`."""
        if _is_generic(tp, list, (str,)):
            return isinstance(obj, list) and all(isinstance(item, str) for item in obj)
        if _is_generic(tp, dict, (str, str)):
            return isinstance(obj, dict) and all(
                isinstance(part, str) for pair in obj.items() for part in pair
            )
        return isinstance(obj, tp)

    def resolve(
        self, cfg: Mapping[str, CfgVal], *, ignore_unknown: bool = True
    ) -> dict[str, CfgVal]:
        """Return the options with defaults filled in, checked.

        Unknown keys are kept (they may belong to whatever the scheduler passes them on to) unless
        `ignore_unknown` is false.
        """
        known, unknown = self._sort(cfg, cfg.items())
        if unknown and not ignore_unknown:
            raise self._unknown(next(iter(unknown)), cfg)
        given = {**known, **unknown}
        for key, option in self._opts.items():
            self._check(key, option, given.get(key), cfg)
        for key in known.keys() - self._opts.keys():
            self._check(key, self._opts[_family(key)], known[key], cfg)
        defaults = {
            key: option.default
            for key, option in self._opts.items()
            if key not in given and not key.endswith(ANY)
        }
        return {**given, **defaults}

    def cfg_from_str(self, cfg_str: str, *, ignore_unknown: bool = True) -> dict[str, CfgVal]:
        """Return the options written in a text, cast to their types; no defaults.

        Unknown keys are dropped with a warning, or refused if `ignore_unknown` is false.
        """
        pairs = read_pairs(cfg_str)
        cast = ((key, self._cast(key, value, pairs)) for key, value in pairs.items())
        known, unknown = self._sort(pairs, cast)
        self._drop(unknown, pairs, ignore_unknown)
        return known

    def cfg_from_json_repr(
        self, json_repr: str, *, ignore_unknown: bool = True
    ) -> dict[str, CfgVal]:
        """Return the options of a JSON object; what belongs in lists and maps becomes text."""
        import json

        try:
            cfg = json.loads(json_repr)
        except ValueError as error:
            reason = f"run options are not JSON: {error}"
            raise InvalidRunConfigValue(reason, "", {}) from error
        if not isinstance(cfg, dict):
            reason = f"run options are not a JSON object but {shorten(json_repr)}"
            raise InvalidRunConfigValue(reason, "", {})
        known, unknown = self._sort(cfg, cfg.items())
        self._drop(unknown, cfg, ignore_unknown)
        return {key: self._as_text(key, value, cfg) for key, value in known.items()}

    def __repr__(self) -> str:
        by_need = sorted(self, key=lambda item: not item[1].is_required)
        shown = (
            f"{key}={key.upper()}" if option.is_required else f"[{key}={key.upper()}]"
            for key, option in by_need
        )
        usage = f"    usage:\n        {','.join(shown)}"
        required = [_help(key, option) for key, option in by_need if option.is_required]
        optional = [_help(key, option) for key, option in by_need if not option.is_required]
        sections = (("required", required), ("optional", optional))
        return usage + "".join(
            f"\n\n    {title} arguments:{''.join(helps)}" for title, helps in sections if helps
        )

    def _sort(
        self, cfg: Mapping[str, Any], items: Any
    ) -> tuple[dict[str, CfgVal], dict[str, CfgVal]]:
        """Separate known from unknown keys; known ones get their declared spelling."""
        known: dict[str, CfgVal] = {}
        unknown: dict[str, CfgVal] = {}
        for spelled, value in items:
            key = self.canonical_key(spelled)
            if key is None:
                unknown[spelled] = value
            elif known.setdefault(key, value) != value:
                reason = f"option {key!r} is given twice, in two spellings, with different values"
                raise InvalidRunConfigException(f"{reason}; keep {key!r}", key, cfg)
        return known, unknown

    def _cast(self, key: str, value: str, cfg: Mapping[str, str]) -> CfgVal:
        option = self.get(key)
        if option is None:
            return value
        try:
            return option.cast_to_type(value)
        except ValueError as error:
            wanted = get_type_name(option.opt_type)
            reason = f"option {key!r} must be {wanted}: {shorten(str(error), 200)}"
            raise InvalidRunConfigValue(reason, key, cfg) from error

    def _as_text(self, key: str, value: Any, cfg: Mapping[str, Any]) -> CfgVal:
        option = self.get(key) or self._opts[key]
        if option.is_type_list_of_str and isinstance(value, list):
            return [str(item) for item in value]
        if option.is_type_dict_of_str and isinstance(value, dict):
            return {str(name): str(item) for name, item in value.items()}
        if value is not None and (option.is_type_list_of_str or option.is_type_dict_of_str):
            raise self._mistyped(key, option, value, cfg)
        result: CfgVal = value
        return result

    def _check(self, key: str, option: runopt, value: Any, cfg: Mapping[str, Any]) -> None:
        if value is None and option.is_required:
            reason = f"option {key!r} is required ({option.help}): give {key}={key.upper()}"
            raise InvalidRunConfigException(reason, key, cfg)
        if value is not None and not runopts.is_type(value, option.opt_type):
            raise self._mistyped(key, option, value, cfg)

    def _mistyped(
        self, key: str, option: runopt, value: object, cfg: Mapping[str, Any]
    ) -> InvalidRunConfigException:
        wanted, found = get_type_name(option.opt_type), type(value).__name__
        reason = f"option {key!r} must be {wanted}, not {found} {shorten(repr(value))}"
        return InvalidRunConfigException(reason, key, cfg)

    def _unknown(self, key: str, cfg: Mapping[str, Any]) -> InvalidRunConfigException:
        return InvalidRunConfigException(self._unknown_text(key), key, cfg)

    def _unknown_text(self, key: str) -> str:
        valid = ", ".join(sorted(self._opts)) or "none"
        hints = (f"no option {shorten(key)!r}", nearest(key, self._opts), f"known: {valid}")
        return "; ".join(hint for hint in hints if hint)

    def _drop(
        self, unknown: Mapping[str, CfgVal], cfg: Mapping[str, Any], ignore_unknown: bool
    ) -> None:
        import logging

        for key in unknown:
            if not ignore_unknown:
                raise self._unknown(key, cfg)
            logging.getLogger(__name__).warning("ignored: %s", self._unknown_text(key))


def _family(name: str) -> str:
    """Return the key that all options of a family are declared by."""
    return name.partition(".")[0] + ANY


def _is_generic(tp: Any, origin: type, args: tuple[type, ...]) -> bool:
    """Recognise `list[str]` and the old `typing.List[str]` alike."""
    return getattr(tp, "__origin__", None) is origin and tp.__args__ == args


def _help(key: str, option: runopt) -> str:
    default = "" if option.is_required else f", {option.default}"
    typed = f"({get_type_name(option.opt_type)}{default})"
    return f"\n        {key}={key.upper()} {typed}\n            {option.help}"
