"""The entry of a rank in a fresh interpreter: `python FLAGS start.py (file|module|code|stdin) ...`.

It is executed by its path, puts the hooks in place and runs the program as if it were not there.
"""

import os
import sys
from importlib.machinery import SourceFileLoader


def main() -> None:
    """Run what the arguments say; never returns."""
    here = os.path.dirname(os.path.abspath(__file__))
    if not sys.flags.safe_path:
        del sys.path[0]  # where this file lies
    what, target, *args = sys.argv[1:]
    said = {"module": ["-m", target], "code": ["-c", target]}.get(what, [target] if target else [])
    argv = [*sys.orig_argv[: -len(sys.argv)], *said, *args]
    program = load(os.path.join(here, "process", "program.py"))
    program.run(program.ProgramCommand(argv, what, target, args), program.hide_caller)


def load(path: str):  # type: ignore[no-untyped-def]
    """Return the module at a path, whichever torchloom the interpreter has, or none."""
    loader = SourceFileLoader(f"torchloom {os.path.basename(path)}", path)
    module = type(sys)(loader.name)
    module.__file__ = path
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
