"""Data in files: text to be continued byte by byte, arrays of samples and their classes."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError

BYTES = 256
MOST_CLASSES = 1_000_000
_ARRAYS = "numpy.savez(file, x=samples, y=classes) writes one"


class Text:
    """Windows of a file's bytes; each byte's target is the next one."""

    kind = "tokens"
    classes = BYTES

    def __init__(self, path: Path, context: int) -> None:
        size = path.stat().st_size
        count = (size - 1) // context
        if count < 2:
            least = 2 * context + 1
            problem = f"{_shown(path)} has {size} bytes, too few for a context of {context}"
            raise SpecError("dataset", f"{problem}: at least {least} are needed")
        whole = torch.from_file(str(path), size=size, dtype=torch.uint8)  # mapped, not read
        self._windows = whole.unfold(0, context + 1, context)
        self.shape: tuple[int, ...] = (context,)

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these windows, and the same one byte later."""
        windows = self._windows[indices].long()
        return windows[:, :-1], windows[:, 1:]


class Arrays:
    """Samples and classes that are in memory."""

    kind = "features"

    def __init__(self, samples: Tensor, targets: Tensor) -> None:
        self._samples = samples
        self._targets = targets
        self.shape = tuple(samples.shape[1:])
        self.classes = int(targets.max()) + 1

    def __len__(self) -> int:
        return len(self._targets)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these samples and their classes."""
        return self._samples[indices], self._targets[indices]


def text_samples(name: str, context: int) -> Text:
    """Return the bytes of a file."""
    return Text(_file(name), context)


def npz_samples(name: str) -> Arrays:
    """Return the arrays `x` and `y` of a file that numpy wrote; objects in it are never loaded."""
    import numpy

    path = _file(name)
    try:
        found = numpy.load(path, allow_pickle=False)
        if isinstance(found, numpy.ndarray):
            raise _wrong(path, "has one array without a name", _ARRAYS)
        with found:
            x, y = found["x"], found["y"]
    except KeyError as error:
        raise _wrong(path, "has not both arrays x and y", _ARRAYS) from error
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise _wrong(path, f"cannot be read: {shorten(str(error))}", _ARRAYS) from error
    _check_arrays(path, x, y)
    samples = torch.from_numpy(x.astype("float32"))
    if x.dtype == numpy.uint8:  # brightness
        samples /= 255
    return Arrays(samples, torch.from_numpy(y.astype("int64")))


def _check_arrays(path: Path, x: Any, y: Any) -> None:
    if x.dtype.kind not in "fiu" or x.ndim < 2:
        is_now = f"is {x.dtype} in {x.ndim} dimensions"
        raise _wrong(path, f"x {is_now}", "give numbers, one row or picture a sample")
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise _wrong(path, f"y is {y.dtype} {y.shape}", f"give {len(x)} whole numbers")
    if len(x) < 2:
        raise _wrong(path, f"has {len(x)} samples", "give at least two")
    if x.dtype.kind == "f" and not bool(abs(x).max() < 1e30):
        raise _wrong(path, "x has values that are not finite, or nearly so", "clean them first")
    if not 0 <= int(y.min()) <= int(y.max()) < MOST_CLASSES:
        raise _wrong(path, f"y goes from {y.min()} to {y.max()}", "number the classes from 0")


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    try:
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if exists:
        raise SpecError("dataset", f"{_shown(path)} is not a file")
    problem = "give a path that every worker can see, from its working folder on"
    raise SpecError("dataset", f"no file {_shown(path)}: {problem}")


def _wrong(path: Path, problem: str, remedy: str) -> SpecError:
    return SpecError("dataset", f"{_shown(path)} {problem}: {remedy}")


def _shown(path: Path) -> str:
    return repr(shorten(str(path), 200))
