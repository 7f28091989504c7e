"""Record what surrounds a job: where its source stands, its packages, its machine, its seeds.

All of it is read beside the weaver's loop, from files and the kernel; git alone is started.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from torchloom.launch.records.folder import RunFolder, now
from torchloom.weaver.runs import origin
from torchloom.weaver.runs.origin import RunOrigin
from torchloom.weaver.store.rows import DeviceRow, RankProcessRow
from torchloom.workspace import sources

_ENDINGS = (".dist-info", ".egg-info")
_FILES = ("METADATA", "PKG-INFO")
_HEADER = 8192  # bytes of a file in which its name and version stand
_PROC = Path("/proc")
FACT = "experiment/"  # and a run's id: the name of the row that holds its record
FILE = "experiment.json"
PATCH = sources.PATCH
_BRIEF = ("commit", "branch", "dirty")
_PRIVATE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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


def hardware(host: str, nodes: Iterable[str], devices: Iterable[DeviceRow]) -> dict[str, Any]:
    """Return this machine and the devices of the nodes of a job."""
    wanted = {host, *nodes}
    found = [one for one in devices if one.node in wanted]
    return {
        "host": host,
        "cpu": cpu_model(_text("cpuinfo")),
        "cores": os.cpu_count(),
        "memory_mb": memory_mb(_text("meminfo")),
        "nodes": sorted(wanted),
        "devices": [_device(one) for one in sorted(found, key=_place)],
    }


def cpu_model(text: str) -> str | None:
    """Return what a processor is called."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("model name", "cpu model", "hardware", "cpu part"):
            return value.strip() or None
    return None


def memory_mb(text: str) -> int | None:
    """Return how much memory there is."""
    for line in text.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return None


def _device(device: DeviceRow) -> dict[str, Any]:
    names = ("uuid", "kind", "node", "index", "memory")
    return {name: getattr(device, name) for name in names}


def _place(device: DeviceRow) -> tuple[str, str, int]:
    return device.node, device.kind, device.index


def _text(name: str) -> str:
    with contextlib.suppress(OSError):
        return (_PROC / name).read_text(errors="replace")
    return ""  # not Linux


@dataclass(frozen=True, slots=True)
class ProvenanceRequest:
    """What the weaver knows of a job whose surroundings are to be recorded."""

    job: str
    run: str
    host: str
    world_size: int | None
    ranks: tuple[RankProcessRow, ...] = ()
    devices: tuple[DeviceRow, ...] = ()
    spec: Mapping[str, Any] | None = None  # as it was submitted
    env: Mapping[str, str] = field(default_factory=dict)  # the weaver's own


def recorded(wanted: ProvenanceRequest) -> dict[str, Any]:
    """Return the record of a job that has just begun, and keep it in its run's folder."""
    found = _origin(wanted) or RunOrigin()
    source, changes = _source(found, wanted)
    python, notes = _interpreter(found, wanted)
    installed = packages_of(python.folders) if python else {}
    spec = wanted.spec or found.spec
    record = {
        "run_id": wanted.run,
        "recorded_at": now(),
        "cwd": found.cwd or None,
        "argv": origin.without_secrets(found.argv),
        "interpreter": python.path if python else None,
        "env": origin.variables(found.env),
        "spec": origin.spec_shown(spec),
        "git": source.facts if source else None,
        "packages": installed,
        "python": python.version if python else None,
        "torch": installed.get("torch"),
        "seeds": {
            "spec": (spec or {}).get("seed"),
            "PYTHONHASHSEED": found.env.get("PYTHONHASHSEED"),
        },
        "hardware": machine(wanted),
        "world_size": wanted.world_size,
        "notes": [*changes, *notes],
    }
    _keep(found.folder, record, source.patch if source else b"")
    return record


def machine(wanted: ProvenanceRequest) -> dict[str, Any]:
    """Return the hardware that a job has."""
    nodes = [rank.node for rank in wanted.ranks if rank.node]
    return hardware(wanted.host, nodes, wanted.devices)


def completed(record: Mapping[str, Any], wanted: ProvenanceRequest) -> dict[str, Any]:
    """Return a record with what is known only when the ranks have come: nodes and devices."""
    if not wanted.ranks:
        return dict(record)
    size = wanted.world_size or record.get("world_size")
    whole = {**record, "hardware": machine(wanted), "world_size": size}
    if whole != record:
        with contextlib.suppress(OSError):
            _write(_folder(wanted), FILE, _json(whole))
    return whole


def brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lists show and search: little, for there are many of them."""
    source, spec = record.get("git") or {}, record.get("spec") or {}
    return {
        **{name: source.get(name) for name in _BRIEF},
        "python": record.get("python"),
        "torch": record.get("torch"),
        "project": spec.get("project", ""),
        "group": spec.get("group", ""),
        "tags": list(spec.get("tags", ())),
    }


def _origin(wanted: ProvenanceRequest) -> RunOrigin | None:
    found = origin.of_folder(RunFolder.named(wanted.job)) if is_name(wanted.job) else None
    if found is not None:
        return found
    here = (rank.pid for rank in wanted.ranks if rank.node == wanted.host and rank.state == "up")
    return next(filter(None, map(origin.of_process, here)), None)


def _source(
    found: RunOrigin, wanted: ProvenanceRequest
) -> tuple[sources.SourceState | None, list[str]]:
    """Return the state of a job's sources: what it runs may have been edited since it was queued.

    Where it runs a copy, or where that is unknown, it is what was submitted.
    """
    here = sources.source_of(found.sources, wanted.env)
    then = sources.kept(found.submitted) if found.submitted else None
    if then is None or (here is not None and not then.is_copied and then.is_as(here)):
        return here, []
    if here is None or then.is_copied:
        return then.source, []
    return here, [f"the sources were changed after the submission, which was at {then.commit}"]


def _interpreter(
    found: RunOrigin, wanted: ProvenanceRequest
) -> tuple[Interpreter | None, list[str]]:
    """Return the interpreter of a job: as it is named, else as the kernel shows it."""
    home = Path(wanted.env["HOME"]) if "HOME" in wanted.env else None
    for path in _candidates(found):
        if python := interpreter(path, home):
            return python, []
    return None, ["the job's interpreter could not be found; its packages are not known"]


def _candidates(found: RunOrigin) -> Iterable[Path]:
    words = [found.python, *(word for word in found.argv[:1] if "python" in os.path.basename(word))]
    for word in filter(None, words):
        path = shutil.which(word, path=found.env.get("PATH"))
        if path:
            yield Path(found.cwd, path)
    for pid in found.pids:
        with contextlib.suppress(OSError):
            yield Path(os.readlink(f"/proc/{pid}/exe"))


def _keep(folder: Path | None, record: Mapping[str, Any], patch: bytes) -> None:
    """Write both files; a full disk costs them, not the record in the database."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        if patch:
            _write(folder, PATCH, patch)
        _write(folder, FILE, _json(record))


def _folder(wanted: ProvenanceRequest) -> Path:
    if not is_name(wanted.job):
        raise FileNotFoundError(wanted.job)
    return RunFolder.named(wanted.job).path


def _write(folder: Path, name: str, data: bytes) -> None:
    """Replace a file in one step; a folder that is gone is not made again."""
    partial = folder / f"{name}.{os.getpid()}.partial"
    try:
        with open(os.open(partial, _FLAGS, _PRIVATE), "wb") as file:
            file.write(data)
        partial.replace(folder / name)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()


def is_name(job: str) -> bool:
    """Tell whether a job's id can be the name of a folder; a stranger's may be anything."""
    return bool(job) and not job.startswith(".") and "/" not in job and "\0" not in job
