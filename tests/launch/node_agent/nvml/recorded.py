"""NVIDIA's library as it was heard to answer: recorded from the real one, replayed strictly.

A recording is JSON: `about`, `constants`, and `calls` in their order, each with `call`, `args` and
either `answer` or `error`. A handle is `{"device": index}`, a set of events `{"events": true}`.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
CONSTANTS = (
    *("nvmlEventTypeXidCriticalError", "NVML_TEMPERATURE_GPU", "NVML_VOLATILE_ECC"),
    *("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_ERROR_TIMEOUT", "NVML_ERROR_GPU_IS_LOST"),
)
STRUCTS = ("total", "free", "used", "device", "eventType", "eventData")


class NVMLError(Exception):
    """What the library raises; `value` is its code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class RecordedNvml:
    """Answers exactly the calls of a recording, in their order, and fails at any other."""

    NVMLError = NVMLError

    def __init__(self, *names: str) -> None:
        """Replay recordings one after the other; all but the first go on where it ended."""
        files = [json.loads((HERE / f"{name}.json").read_text()) for name in names]
        self._constants = files[0]["constants"]
        self._calls = [call for file in files for call in file["calls"]]

    def __getattr__(self, name: str) -> Any:
        if name in self._constants:
            return self._constants[name]
        return lambda *args: self._answer(name, args)

    def done(self) -> None:
        """Fail if there is a call that nobody made."""
        assert self._calls == [], f"{len(self._calls)} recorded calls were not made"

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        assert self._calls, f"{name} was called after the end of the recording"
        call = self._calls.pop(0)
        assert (name, _plain(args)) == (call["call"], call["args"])
        if "error" in call:
            raise NVMLError(call["error"])
        return _rich(call["answer"])


class Recorder:
    """Passes calls on to the real library and writes down what was asked and answered."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.NVMLError = nvml.NVMLError

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        return (lambda *args: self._pass(name, found, args)) if callable(found) else found

    def write(self, name: str, about: str, folder: Path = HERE) -> None:
        """Save what was recorded since the last time."""
        constants = {word: getattr(self._nvml, word) for word in CONSTANTS}
        text = json.dumps({"about": about, "constants": constants, "calls": self.calls}, indent=1)
        (folder / f"{name}.json").write_text(text + "\n")
        self.calls = []

    def _pass(self, name: str, real: Any, args: tuple[Any, ...]) -> Any:
        call: dict[str, Any] = {"call": name, "args": [self._told(one) for one in args]}
        self.calls.append(call)
        try:
            answer = real(*args)
        except self.NVMLError as error:
            call["error"] = error.value
            raise
        call["answer"] = self._told(answer)
        return answer

    def _told(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple | list):
            return [self._told(one) for one in value]
        found = [word for word in STRUCTS if hasattr(value, word)]
        if found:
            return {"struct": {word: self._told(getattr(value, word)) for word in found}}
        if "EventSet" in type(value).__name__:
            return {"events": True}
        for index, handle in enumerate(self._handles):
            if _address(handle) == _address(value):
                return {"device": index}
        self._handles.append(value)
        return {"device": len(self._handles) - 1}


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return vars(value) if isinstance(value, SimpleNamespace) else value


def _rich(answer: Any) -> Any:
    if isinstance(answer, list):
        return tuple(answer)
    if isinstance(answer, dict) and "struct" in answer:
        return SimpleNamespace(**{word: _rich(one) for word, one in answer["struct"].items()})
    return answer
