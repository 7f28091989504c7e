"""Write down every public name of TorchX's modules, for `test_torchx_surface.py` to compare with.

Run it with an interpreter that has `torchx-nightly`: `python record_surface.py`. It reads sources,
so that the modules of engines whose packages are not installed count, too.
"""

import ast
import importlib.util
import json
from importlib.metadata import version
from pathlib import Path

NO_NAMES = {"log", "logger", "T", "F", "S"}  # each module has its own; nobody imports them


def names_of(tree: ast.Module) -> dict[str, str]:
    """Return the public names that a module defines or lists in `__all__`, with their kinds."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = "function"
        elif isinstance(node, ast.ClassDef):
            found[node.name] = "class"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: "constant" for each in targets if isinstance(each, ast.Name)}
            if any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets):
                words = ast.walk(node.value or node)
                listed = [each.value for each in words if isinstance(each, ast.Constant)]
                found |= {str(name): "listed" for name in listed if name not in found}
    return {
        name: kind
        for name, kind in sorted(found.items())
        if not name.startswith("_") and name not in NO_NAMES
    }


def main() -> None:
    found = importlib.util.find_spec("torchx")
    assert found is not None
    assert found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    modules = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root.parent).with_suffix("").parts
        if "test" in parts or any(part.startswith("_") for part in parts[:-1]):
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.rpartition(".")[2].startswith("_") and (
            names := names_of(ast.parse(file.read_text()))
        ):
            modules[name] = names
    answers = {"version": version("torchx-nightly"), "modules": modules}
    target = Path(__file__).with_name("surface.json")
    target.write_text(json.dumps(answers, indent=1) + "\n")
    print(f"wrote {target}: {sum(map(len, modules.values()))} names of {len(modules)} modules")


if __name__ == "__main__":
    main()
