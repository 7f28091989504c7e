"""The packages of an interpreter, by the files in its folders: it is not started for that."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_ENDINGS = (".dist-info", ".egg-info")
_FILES = ("METADATA", "PKG-INFO")
_HEADER = 8192  # bytes of a file in which its name and version stand


class Interpreter(NamedTuple):
    """What can be seen of an interpreter from outside."""

    path: str
    version: str | None
    folders: tuple[Path, ...]  # where packages are, the first wins


def interpreter(path: Path, user_home: Path | None = None) -> Interpreter | None:
    """Return what a path to a Python program leads to; nothing where it is none."""
    prefix = path.parent.parent
    if (prefix / "pyvenv.cfg").is_file():
        return _virtual(path, prefix, user_home)
    real = Path(os.path.realpath(path))
    if _is_script(real):
        return None
    version = _short_version(real.parent.parent, real.name)
    if version is None:
        return None
    return Interpreter(
        str(path),
        _full_version(real.parent.parent, version),
        tuple(_plain(real.parent.parent, version, user_home)),
    )


def packages_of(folders: tuple[Path, ...]) -> dict[str, str]:
    """Return the version of each package, by name; what is found first is what is imported."""
    found: dict[str, tuple[str, str]] = {}
    for folder in folders:
        for name, version in _listed(folder, _stamp(folder)):
            found.setdefault(normal(name), (name, version))
    return dict(sorted(found.values(), key=lambda one: normal(one[0])))


def normal(name: str) -> str:
    """Return the one spelling of a package's name that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _virtual(path: Path, prefix: Path, user_home: Path | None) -> Interpreter | None:
    settings = _settings(prefix / "pyvenv.cfg")
    folders = sorted(prefix.glob("lib*/python3*/site-packages"))
    folders = list({os.path.realpath(folder): folder for folder in folders}.values())
    version = settings.get("version") or settings.get("version_info")
    if settings.get("include-system-site-packages", "").lower() == "true" and "home" in settings:
        base = interpreter(Path(settings["home"]) / "python3", user_home)
        folders += base.folders if base else ()
        version = version or (base.version if base else None)
    return Interpreter(str(path), _numbers(version), tuple(folders))


def _settings(path: Path) -> dict[str, str]:
    lines = path.read_text(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _plain(prefix: Path, version: str, user_home: Path | None) -> Iterator[Path]:
    """Yield where an interpreter that is installed in a place of its own has packages."""
    if user_home is not None:
        yield user_home / ".local" / "lib" / f"python{version}" / "site-packages"
    if prefix == Path("/usr"):  # as Debian and its kin have it
        yield Path(f"/usr/local/lib/python{version}/dist-packages")
        yield Path("/usr/lib/python3/dist-packages")
    for lib in ("lib", "lib64"):
        yield prefix / lib / f"python{version}" / "site-packages"


def _short_version(prefix: Path, name: str) -> str | None:
    if found := re.fullmatch(r"python(3\.\d+)t?", name):
        return found[1]
    for folder in sorted(prefix.glob("lib/python3.*/")):
        if found := re.fullmatch(r"python(3\.\d+)t?", folder.name):
            return found[1]
    return None


def _full_version(prefix: Path, version: str) -> str:
    with contextlib.suppress(OSError):
        text = (prefix / "include" / f"python{version}" / "patchlevel.h").read_text()
        if found := re.search(r'#define PY_VERSION\s+"([^"]+)"', text):
            return found[1]
    return version


def _numbers(version: str | None) -> str | None:
    found = re.match(r"\d+(\.\d+){1,2}", version or "")
    return found[0] if found else None


def _is_script(path: Path) -> bool:
    """Tell whether a file is a script that chooses an interpreter, as version managers have."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(2) == b"#!"
    return True  # not to be read: nothing can be said


def _stamp(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime_ns
    return 0


@lru_cache(maxsize=64)
def _listed(folder: Path, stamp: int) -> tuple[tuple[str, str], ...]:
    """Return the packages of a folder; as long as nothing is added or removed it is not read."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(_ENDINGS) and (one := _package(Path(entry.path))):
                found.append(one)
    return tuple(found)


def _package(path: Path) -> tuple[str, str] | None:
    for name in _FILES:
        file = path / name if path.is_dir() else path
        with contextlib.suppress(OSError), open(file, "rb") as opened:
            header = _header(opened.read(_HEADER).decode(errors="replace"))
            if "name" in header and "version" in header:
                return header["name"], header["version"]
    return None


def _header(text: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            break  # an empty line ends it
        found.setdefault(name.strip().lower(), value.strip())
    return found
