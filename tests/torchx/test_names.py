import importlib
import sys
from types import ModuleType

import pytest

import torchloom.specs
from torchloom.components import dist, finder
from torchloom.specs import api, builders, file_linter
from torchloom.torchx.names import MODULES, torchx_names


def torchx_modules() -> dict[str, ModuleType]:
    return {name: m for name, m in sys.modules.items() if name.split(".")[0] == "torchx"}


def test_torchx_names_are_torchlooms_for_a_while_and_leave_nothing() -> None:
    before = torchx_modules()

    with torchx_names():
        specs = importlib.import_module("torchx.specs")
        assert specs.AppDef is api.AppDef
        assert importlib.import_module("torchx.specs.builders").parse_mounts is (
            builders.parse_mounts
        )
        assert importlib.import_module("torchx.specs.finder").get_component is (
            finder.get_component
        )
        assert importlib.import_module("torchx.components.dist").ddp is dist.ddp

    assert torchx_modules() == before
    assert torchloom.specs.__name__ == "torchloom.specs"
    assert torchloom.specs.__spec__ is not None
    assert torchloom.specs.__spec__.name == "torchloom.specs"


@pytest.mark.parametrize(
    "statement",
    [
        "import torchx",
        "import torchx.specs as specs",
        "import torchx.specs.api",
        "from torchx import specs",
        "from torchx.specs import *",
        "from torchx.specs import AppDef, Role, macros, named_resources, parse_mounts, resource",
        "from torchx.specs import finder, api",
        "from torchx.specs.api import AppDef as A, BindMount",
        "from torchx.specs.file_linter import validate, get_fn_docstring",
        "from torchx.components.structured_arg import StructuredNameArgument",
        "from torchx.components import dist, utils",
        "from torchx.components.component_test_base import ComponentTestCase",
        "from torchx.version import TORCHX_IMAGE, __version__, get_torchx_image",
        "import torchx; torchx.IMAGE, torchx.__version__",
        *(f"import {name}" for name in MODULES),
    ],
)
def test_every_way_to_import_works(statement: str) -> None:
    with torchx_names():
        exec(statement, {})  # noqa: S102 - the statement is the subject


def test_a_star_import_brings_what_the_module_names() -> None:
    names: dict[str, object] = {}

    with torchx_names():
        exec("from torchx.specs import *", names)  # noqa: S102
        exec("from torchx.components.structured_arg import *", names)  # noqa: S102

    assert names["AppDef"] is api.AppDef
    assert names["StructuredJArgument"] is dist.StructuredJArgument


def test_what_has_no_counterpart_says_so() -> None:
    with (
        torchx_names(),
        pytest.raises(ModuleNotFoundError, match=r"no counterpart of 'torchx\.cli'"),
    ):
        importlib.import_module("torchx.cli")


def test_a_real_torchx_is_put_aside_and_comes_back_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = {name: ModuleType(name) for name in ("torchx", "torchx.specs", "torchx.other")}
    for name, module in real.items():
        monkeypatch.setitem(sys.modules, name, module)
    contents = {name: dict(vars(module)) for name, module in real.items()}

    with torchx_names():
        assert importlib.import_module("torchx.specs").AppDef is api.AppDef
        assert "torchx.other" not in sys.modules

    assert torchx_modules() == real
    assert {name: vars(module) for name, module in real.items()} == contents


def test_names_come_back_after_an_error_and_may_be_nested() -> None:
    hooks = list(sys.meta_path)
    before = torchx_modules()

    with torchx_names():
        importlib.import_module("torchx.specs")
        with pytest.raises(ModuleNotFoundError), torchx_names():
            importlib.import_module("torchx.nowhere")
        assert "torchx.specs" in sys.modules

    assert sys.meta_path == hooks
    assert torchx_modules() == before


def test_the_linter_has_its_torchx_name() -> None:
    with torchx_names():
        found = importlib.import_module("torchx.specs.file_linter")

    assert found.ComponentFunctionValidator is file_linter.ComponentFunctionValidator
