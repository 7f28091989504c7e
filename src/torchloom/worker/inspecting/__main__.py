"""`python -m torchloom.worker.inspecting WHAT`: a JSON request on stdin, a JSON reply on stdout.

Processes without torch start it to inspect checkpoints. An error is a reply, too.
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
    """Handle one request; return the exit code."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not be in the reply
    try:
        reply: dict[str, Any] = {"answer": answer(words[0], json.load(sys.stdin))}
        code = 0
    except LoomError as error:
        reply = {"error": str(error), "code": error.code, "exit_code": error.exit_code}
        code = error.exit_code
    with out:
        json.dump(reply, out)
    return code


def answer(what: str, asked: Mapping[str, Any]) -> Any:
    """Return the requested facts; torch is imported only here."""
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
    raise Failure(f"no inspection {what!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
