"""What is not converted, found by its names: frameworks, and what the API does not carry yet."""

import ast
from collections.abc import Callable, Iterator

from torchloom.cli.convert.program import Program, names_in
from torchloom.cli.convert.source import NotConvertible

_AS_IT_IS = "needs no conversion: `loom run -n 2 SCRIPT` shows and steers it as it is"
_OWNERS = {  # packages whose trainers own the loop: the class, and what it is called
    "lightning": ("Trainer", "Lightning"),
    "pytorch_lightning": ("Trainer", "Lightning"),
    "transformers": ("Trainer", "the Trainer of transformers"),
    "accelerate": ("Accelerator", "Accelerate"),
}
_ENGINES = {  # packages with an engine of their own
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
    "torchft": "torchft",
    "fairscale": "fairscale",
    "colossalai": "Colossal-AI",
    "ray": "Ray",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
}
_SHARDED = "convert it by hand; `loom docs convert-an-fsdp-loop` shows how"
_CALLS = {  # functions and classes of torch, by their last name
    "fully_shard": f"FSDP: {_SHARDED}",
    "FullyShardedDataParallel": f"FSDP: {_SHARDED}",
    "distribute_tensor": f"DTensor: {_SHARDED}",
    "distribute_module": f"DTensor: {_SHARDED}",
    "parallelize_module": f"tensor parallelism: {_SHARDED}",
    "ZeroRedundancyOptimizer": "each rank has a part of this optimizer; use a plain one",
    "DataParallel": "one process for all devices; use DistributedDataParallel, one for each",
    "spawn": "the program starts its ranks itself: `loom run -n N` starts them and sets RANK",
    "start_processes": "the program starts its ranks itself: `loom run -n N` starts them",
    "Join": "ranks with uneven data; run.loader deals each rank as many batches",
    "CUDAGraph": "recovery cannot rebuild a captured graph: leave it out",
    "make_graphed_callables": "recovery cannot rebuild a captured graph: leave it out",
    "init_rpc": "RPC between ranks does not survive a replaced rank",
    "PostLocalSGDOptimizer": "ranks whose weights differ between steps are not carried",
}
_METHODS = {
    "register_comm_hook": "run.wrap rebuilds DDP, which loses its hook: leave it out",
    "_set_static_graph": "run.wrap rebuilds DDP: give it static_graph=True instead",
}
_ITERATORS = ("next", "iter")


def refusals(program: Program) -> list[NotConvertible]:
    """Return what is known by its name not to be convertible, in the order of the lines."""
    found = [*_owners(program), *_engines(program)]
    if not found:
        found = [*_calls(program), *_methods(program)]
    return sorted(found, key=lambda one: one.line)


def _packages(program: Program) -> Iterator[tuple[str, str, ast.stmt]]:
    """Yield what is imported: its package, its full name, and where."""
    for node in program.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.module.partition(".")[0], f"{node.module}.{alias.name}", node


def _owners(program: Program) -> Iterator[NotConvertible]:
    """Yield the trainers that own the loop."""
    for node in program.nodes:
        whole = program.dotted(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        package = whole.partition(".")[0]
        kind, title = _OWNERS.get(package, ("", ""))
        if kind and whole.endswith(kind):
            yield NotConvertible(node, f"{title} {_AS_IT_IS}")
            return


def _engines(program: Program) -> Iterator[NotConvertible]:
    for package, _, node in _packages(program):
        if package in _ENGINES:
            what = _ENGINES[package]
            yield NotConvertible(node, f"{what} has an engine of its own: run it as it is")
            return


def _calls(program: Program) -> Iterator[NotConvertible]:
    for call in program.calls:
        whole = program.dotted(call.func)
        why = _CALLS.get(whole.rpartition(".")[2]) if whole.startswith("torch.") else None
        if why is not None:
            yield NotConvertible(call, why)


def _methods(program: Program) -> Iterator[NotConvertible]:
    for name, call in program.method_calls(*_METHODS):
        if name and isinstance(call.func, ast.Attribute):
            yield NotConvertible(call, _METHODS[call.func.attr])


def is_converted(program: Program) -> bool:
    """Tell whether the program uses the steps of a run already."""
    has_import = any(package == "torchloom" for package, _, _ in _packages(program))
    return has_import and any(True for _ in program.method_calls("steps"))


def refuse_partly_converted(program: Program) -> None:
    """Refuse a program that uses some of the API, but not its steps."""
    for package, _, node in _packages(program):
        if package == "torchloom":
            why = "the program uses torchloom, but not run.steps: write the loop by hand"
            raise NotConvertible(node, f"{why}; `loom docs convert-nanogpt` shows how")


def refuse_in_steps(program: Program, nodes: list[ast.AST], trains: "Trains") -> None:
    """Refuse what a step may not do, since it may be repeated, or begun by another process."""
    for node in nodes:
        name = node.func if isinstance(node, ast.Call) else None
        if isinstance(name, ast.Name) and name.id in {*_ITERATORS} - program.functions.keys():
            why = f"{name.id}() is data with a position that a new process does not know"
            raise NotConvertible(name, f"{why}: loop over the loader, `for batch in loader`")
        if isinstance(node, ast.Try) and trains(node.body):
            for handler in node.handlers:
                if _is_broad(handler):
                    why = "this `except` around a step also catches the loss of another rank"
                    raise NotConvertible(handler, f"{why}: remove it from the loop")


Trains = Callable[[list[ast.stmt]], bool]


def _is_broad(handler: ast.ExceptHandler) -> bool:
    names = names_in(handler.type) if handler.type is not None else {"Exception"}
    return bool(names & {"Exception", "BaseException", "RuntimeError"})
