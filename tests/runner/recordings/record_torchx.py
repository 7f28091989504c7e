"""Write down the public methods of TorchX's Runner, for `test_runner_surface.py` to compare with.

Run it with an interpreter that has `torchx-nightly`: `python record_torchx.py`.
"""

import inspect
import json
from importlib.metadata import version
from pathlib import Path


def methods(cls: type) -> dict[str, list[list[str]]]:
    """Return each public method's parameters as [name, kind, default]."""
    public = [name for name in vars(cls) if not name.startswith("_") or name == "__init__"]
    return {name: parameters(getattr(cls, name)) for name in sorted(public)}


def parameters(function: object) -> list[list[str]]:
    signature = inspect.signature(function)
    return [
        [p.name, p.kind.name, "" if p.default is p.empty else repr(p.default)]
        for p in signature.parameters.values()
    ]


if __name__ == "__main__":
    from torchx.runner import Runner, get_runner
    from torchx.schedulers.api import Scheduler, split_lines

    texts = ["", "a", "a\n", "a\nb", "\n\n", "a\r\nb\rc\n", "a\x0bb\u2028c\n", "a\n\nb\n"]
    answers = {
        "version": version("torchx-nightly"),
        "get_runner": parameters(get_runner),
        "Runner": methods(Runner),
        "Scheduler": methods(Scheduler),
        "split_lines": [[text, split_lines(text)] for text in texts],
    }
    target = Path(__file__).with_name("torchx.json")
    target.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
    print(f"wrote {target}")
