"""`python -m torchloom.worker.inspecting WHAT`: a question on standard input, its answer on output.

Whoever has no torch starts this as a process. Both are JSON; an error is an answer, too.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from torchloom.errors import Failure, LoomError


class InspectionNeedsTorch(Failure):
    """This interpreter has no torch."""

    code = "no_torch"


def main(words: list[str]) -> int:
    """Answer one question; return the exit code that belongs to the answer."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not stand in the answer
    try:
        told: dict[str, Any] = {"answer": answer(words[0], json.load(sys.stdin))}
        code = 0
    except LoomError as error:
        told = {"error": str(error), "code": error.code, "exit_code": error.exit_code}
        code = error.exit_code
    with out:
        json.dump(told, out)
    return code


def answer(what: str, asked: Mapping[str, Any]) -> Any:
    """Return what is asked for; torch is imported only here."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InspectionNeedsTorch(str(error)) from None
    from torchloom.worker.saving import export, inspection

    match what:
        case "diff":
            sides = [inspection.read(asked[side]["root"], asked[side]["step"]) for side in "ab"]
            return inspection.compare(*sides)
        case "export":
            return export.export(inspection.read(asked["root"], asked["step"]), asked)
        case "digests":
            return inspection.read(asked["root"], asked["step"]).digests()
    raise Failure(f"nothing is known of {what!r} here")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
