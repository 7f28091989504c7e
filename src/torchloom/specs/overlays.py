"""Fields of an engine's request that no AppDef or Role has, kept in `metadata` until it is built.

An overlay is a mapping. Merged into a request, mappings are merged, lists appended, other values
replaced; a tuple replaces a list. `PUT`, `JOIN` and `DEL` make keys that act otherwise.
"""

import copy
import enum
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from torchloom.errors import UserError, shorten
from torchloom.specs.role import AppDef, Role

Overlay = dict[str, Any]

NESTED = "__torchx_overlays__"  # marks a namespace whose keys are kinds of overlays
_PUT, _JOIN, _DEL = "__put__", "__join__", "__del__"


class OverlayRefused(UserError, ValueError):
    """An overlay has keys that it must not have, or cannot be read."""

    code = "bad_overlay"


class OverlayMistyped(UserError, TypeError):
    """A value of an overlay does not fit what it is merged into."""

    code = "overlay_mistyped"


def PUT(key: str) -> str:  # noqa: N802 - TorchX's name
    """Return the key that replaces a value as a whole.

    Example:
        >>> from torchloom.specs.overlays import PUT, apply_overlay
        >>> request = {"containers": [{"name": "a"}]}
        >>> apply_overlay(request, {PUT("containers"): [{"name": "b"}]})
        >>> request
        {'containers': [{'name': 'b'}]}
    """
    return f"{_PUT}:{key}"


def JOIN(key: str, *, on: str) -> str:  # noqa: N802 - TorchX's name
    """Return the key that merges a list of mappings, item by item, by their field `on`.

    Example:
        >>> from torchloom.specs.overlays import JOIN, apply_overlay
        >>> request = {"containers": [{"name": "a", "image": "v1"}]}
        >>> more = [{"name": "a", "memory": "1Gi"}, {"name": "b"}]
        >>> apply_overlay(request, {JOIN("containers", on="name"): more})
        >>> request
        {'containers': [{'name': 'a', 'image': 'v1', 'memory': '1Gi'}, {'name': 'b'}]}
    """
    return f"{_JOIN}:{key}:{on}"


def DEL(key: str) -> str:  # noqa: N802 - TorchX's name
    """Return the key that removes a field, so that the engine uses its own default."""
    return f"{_DEL}:{key}"


def apply_overlay(base: Overlay, overlay: Overlay) -> None:
    """Merge an overlay into a request, in place."""
    for key, value in overlay.items():
        meant = _parse(key)
        if meant.operation == _DEL:
            _remove(base, meant.field)
        elif meant.operation == _PUT:
            _remove(base, meant.field)
            base[meant.field] = copy.deepcopy(value)
        elif meant.operation == _JOIN:
            _remove(base, meant.field, keep=meant.field)
            _join(base, meant, value)
        else:
            _remove(base, meant.field, keep=key)
            _merge(base, key, value, apply_overlay)


def set_overlay(target: AppDef | Role, namespace: str, kind: str, overlay: Any) -> None:
    """Store an overlay in `target.metadata[namespace][kind]`, merged into what is there.

    Operators are stored as they are and act when the request is built.

    Args:
        target: The app or role.
        namespace: The engine, such as `kubernetes`.
        kind: The structure of its request, such as `V1Pod`.
        overlay: A mapping or a dataclass; fields that are None are left out of a dataclass.

    Raises:
        OverlayRefused: The kind is a reserved word.
        OverlayMistyped: The overlay is of another type, or has values that cannot be stored.
    """
    _check_kind(kind)
    plain = _plain_overlay(overlay)
    metadata: dict[str, Any] = target.metadata
    stored = metadata.get(namespace)
    if not isinstance(stored, dict):
        if stored is not None:
            _warn("%s: %s in metadata is replaced by an overlay", namespace, type(stored).__name__)
        stored = metadata[namespace] = {}
    stored[NESTED] = True
    if not isinstance(stored.get(kind), dict):
        stored[kind] = {}
    _accumulate(stored[kind], plain)


def get_overlay(
    target: AppDef | Role, namespace: str, kind: str, *, flat_fallback: bool = True
) -> Overlay:
    """Return the overlay of a kind; empty if there is none.

    A namespace that is a text names a file of JSON or YAML. One that `set_overlay` did not write
    may be the overlay itself, without kinds: it is returned unless `flat_fallback` is off.
    """
    _check_kind(kind)
    stored: Any = target.metadata.get(namespace)
    if isinstance(stored, str):
        stored = _read_file(stored)
    if not isinstance(stored, dict):
        return {}
    if isinstance(stored.get(kind), dict):
        found: Overlay = stored[kind]
        return found
    has_kinds = len(stored) > 1 and all(isinstance(each, dict) for each in stored.values())
    if stored.get(NESTED) or not flat_fallback or has_kinds or not stored:
        return {}
    _warn("metadata[%r] has no kind %r and is taken as one; use set_overlay", namespace, kind)
    return stored


def validate_overlay(
    overlay: Overlay,
    *,
    blocklist: Collection[str] | None = None,
    forbidden_keys: Collection[str] | None = None,
    overlay_name: str = "overlay",
    suggestion: str = "",
) -> None:
    """Refuse an overlay with keys that it must not have, also inside operators.

    Args:
        overlay: The overlay.
        blocklist: Keys that an app or role has fields for.
        forbidden_keys: Keys of another kind of overlay.
        overlay_name: The kind, for the message.
        suggestion: What to do about forbidden keys.

    Raises:
        OverlayRefused: The overlay has such keys.
    """
    given = [_parse(key).field for key in overlay]
    if own := [key for key in given if key in (blocklist or ())]:
        named = ", ".join(f"{overlay_name}.{key}" for key in own)
        raise OverlayRefused(f"overlay sets {named}: set the field of the role or app instead")
    if strange := sorted({key for key in given if key in (forbidden_keys or ())}):
        problem = f"{overlay_name} overlay has keys of another kind: {', '.join(strange)}"
        raise OverlayRefused(f"{problem}; {suggestion}" if suggestion else problem)


@dataclass(frozen=True)
class OverlaySpec:
    """One kind of overlay that an engine reads, and the keys it must not have.

    Example:
        >>> from torchloom.specs import Role
        >>> from torchloom.specs.overlays import OverlaySpec
        >>> pod = OverlaySpec("kubernetes", "V1Pod", blocklist=("env",))
        >>> role = Role("trainer", image="")
        >>> pod.set(role, {"spec": {"hostNetwork": True}})
        >>> pod.get(role)
        {'spec': {'hostNetwork': True}}
    """

    namespace: str
    kind: str
    blocklist: tuple[str, ...] = ()

    def set(self, target: AppDef | Role, overlay: Any) -> None:
        """Check an overlay and store it."""
        plain = _plain_overlay(overlay)
        validate_overlay(plain, blocklist=self.blocklist, overlay_name=self.kind)
        set_overlay(target, self.namespace, self.kind, plain)

    def get(self, target: AppDef | Role) -> Overlay:
        """Return the stored overlay, checked."""
        found = get_overlay(target, self.namespace, self.kind, flat_fallback=False)
        validate_overlay(found, blocklist=self.blocklist, overlay_name=self.kind)
        return found


class _Key(NamedTuple):
    operation: str
    field: str
    on: str


def _parse(key: str) -> _Key:
    """Return the field that a key means, and what is to be done to it."""
    operation, _, rest = str(key).partition(":")
    if operation == _JOIN:
        field, _, on = rest.partition(":")
        return _Key(_JOIN, field, on)
    return _Key(operation, rest, "") if operation in (_PUT, _DEL) else _Key("", key, "")


def _accumulate(stored: Overlay, overlay: Overlay) -> None:
    """Merge an overlay into a stored one: operators stay, and the last for a field counts."""
    for key, value in overlay.items():
        meant = _parse(key)
        if meant.operation == _JOIN:
            before = stored.get(key)
            if before is None and isinstance(stored.get(meant.field), list):
                before = stored[meant.field]
            joined = {} if before is None else {meant.field: copy.deepcopy(before)}
            _join(joined, meant, value)
            _remove(stored, meant.field)
            stored[key] = joined[meant.field]
        else:
            _remove(stored, meant.field, keep=key)
            _merge(stored, key, value, _accumulate)


def _remove(base: Overlay, field: str, keep: str = "") -> None:
    """Remove a field in all its spellings but one."""
    for key in [key for key in base if key != keep and _parse(key).field == field]:
        del base[key]


def _merge(base: Overlay, key: str, value: Any, deeper: Callable[[Overlay, Overlay], None]) -> None:
    before = base.get(key)
    if key in base and isinstance(before, dict) and isinstance(value, dict):
        deeper(before, value)
    elif isinstance(before, list) and isinstance(value, list):
        before.extend(copy.deepcopy(value))
    elif isinstance(value, tuple) and (key not in base or isinstance(before, list)):
        base[key] = list(value)
    elif key in base and (isinstance(before, dict | list) or isinstance(value, dict | list)):
        there, given = type(before).__name__, type(value).__name__
        raise OverlayMistyped(f"overlay gives {key!r} a {given}; the request has a {there} there")
    else:
        base[key] = copy.deepcopy(value)


def _join(base: Overlay, meant: _Key, value: Any) -> None:
    if not meant.on:
        raise OverlayRefused(f"overlay joins {meant.field!r} on nothing: use JOIN(field, on=key)")
    _check_mappings(value, f"overlay joins {meant.field!r} with")
    if meant.field not in base:
        base[meant.field] = copy.deepcopy(value)
        return
    there = base[meant.field]
    _check_mappings(there, f"overlay joins {meant.field!r}, of which the request has")
    known = {item[meant.on]: item for item in there if meant.on in item}
    for item in value:
        if meant.on in item and item[meant.on] in known:
            known[item[meant.on]].update(copy.deepcopy(item))
        else:
            there.append(copy.deepcopy(item))


def _check_mappings(value: Any, what: str) -> None:
    if not isinstance(value, list):
        raise OverlayMistyped(f"{what} a {type(value).__name__}, not a list of mappings")
    if other := next((item for item in value if not isinstance(item, dict)), None):
        raise OverlayMistyped(f"{what} a list with {shorten(repr(other))}, not only mappings")


def _check_kind(kind: str) -> None:
    if kind == NESTED:
        raise OverlayRefused(f"{kind!r} is a reserved word and no kind of overlay")


def _plain_overlay(overlay: Any) -> Overlay:
    if isinstance(overlay, dict) or _is_record(overlay):
        plain: Overlay = _plain(overlay, "overlay", strict=False)
        return plain
    found = type(overlay).__name__
    raise OverlayMistyped(f"an overlay is a mapping or a dataclass instance, not {found}")


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _plain(value: Any, place: str, *, strict: bool) -> Any:
    """Return a value without dataclasses and enums; inside a dataclass, only what JSON has."""
    if _is_record(value):
        return {name: _plain(item, f"{place}.{name}", strict=True) for name, item in _filled(value)}
    if isinstance(value, enum.Enum):
        return _plain(value.value, place, strict=strict)
    if isinstance(value, dict):
        if strict and (key := next((key for key in value if not isinstance(key, str)), None)):
            raise OverlayMistyped(f"{place}: {key!r} is not a string: name a field of it")
        return {
            key: _plain(item, f"{place}[{key!r}]", strict=strict) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = (_plain(item, f"{place}[{n}]", strict=strict) for n, item in enumerate(value))
        return tuple(items) if isinstance(value, tuple) else list(items)
    if strict and value is not None and not isinstance(value, str | int | float | bool):
        found = type(value).__name__
        raise OverlayMistyped(f"{place}: a {found} cannot be in an overlay; use text or numbers")
    return value


def _filled(record: Any) -> Iterator[tuple[str, Any]]:
    pairs = ((each.name, getattr(record, each.name)) for each in fields(record))
    return ((name, value) for name, value in pairs if value is not None)


def _read_file(place: str) -> Mapping[str, Any]:
    """Return the mapping in a file of JSON or YAML, where a tuple may stand for `PUT`."""
    text = _text_of(place)
    try:
        data = json.loads(text)
    except ValueError:
        data = _from_yaml(text, place)
    if not isinstance(data, dict):
        found = type(data).__name__
        raise OverlayRefused(f"overlay file {shorten(place)!r} has a {found}, not a mapping")
    return data


def _from_yaml(text: str, place: str) -> Any:
    import yaml

    class TupleLoader(yaml.SafeLoader):
        """Safe, with tuples."""

    TupleLoader.add_constructor(
        "tag:yaml.org,2002:python/tuple",
        lambda loader, node: tuple(loader.construct_sequence(node)),  # type: ignore[arg-type]
    )
    try:
        return yaml.load(text, Loader=TupleLoader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise OverlayRefused(f"overlay file {shorten(place)!r} is not YAML: {reason}") from error


def _text_of(place: str) -> str:
    scheme, separator, rest = place.partition("://")
    try:
        if not separator or scheme == "file":
            with open(rest if separator else place, encoding="utf-8") as file:
                return file.read()
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]

        with fsspec.open(place, "r") as file:
            return str(file.read())
    except ImportError as error:
        remedy = "install fsspec, or use a local path"
        raise OverlayRefused(f"overlay file {shorten(place)!r} needs fsspec; {remedy}") from error
    except (OSError, ValueError) as error:
        raise OverlayRefused(f"overlay file {shorten(place)!r} cannot be read: {error}") from error


def _warn(message: str, *values: object) -> None:
    import logging

    logging.getLogger(__name__).warning(message, *values)
