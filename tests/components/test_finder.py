import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchloom.components import dist, utils
from torchloom.components.catalog import BUILTINS
from torchloom.components.component_test_base import ComponentTestCase
from torchloom.components.finder import (
    ComponentNotFoundException,
    ComponentValidationException,
    find_components,
    get_builtin_source,
    get_component,
    get_components,
)
from torchloom.specs.api import AppDef
from torchloom.specs.arguments import arguments_of
from torchloom.specs.builders import ComponentFailed, component_help, materialize_appdef
from torchloom.specs.file_linter import validate, validate_all

APP = "return specs.AppDef(name={}, roles=[specs.Role(name='r', image='', entrypoint='e')])"
OLD = f"""
from typing import Dict, Optional
import torchx.specs as specs

def train(name: str, env: Optional[Dict[str, str]] = None) -> specs.AppDef:
    {APP.format("name")}
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def install(folder: Path, package: str, entries: str, files: dict[str, str]) -> None:
    """Put a package with entry points where Python looks for packages."""
    write(folder / f"{package}-1.dist-info" / "METADATA", f"Name: {package}\nVersion: 1\n")
    write(folder / f"{package}-1.dist-info" / "entry_points.txt", entries)
    for name, text in files.items():
        write(folder / name, text)


def test_the_table_of_built_ins_is_what_the_modules_hold() -> None:
    for name, module in {"dist": dist, "utils": utils}.items():
        checked = validate_all(str(module.__file__))
        assert BUILTINS[name] == tuple(sorted(fn for fn in checked if not checked[fn]))


@pytest.mark.parametrize("name", [f"{m}.{f}" for m, names in BUILTINS.items() for f in names])
def test_a_built_in_is_valid_and_explains_every_argument(name: str) -> None:
    component = get_component(name)

    help_text = component_help(component)

    assert validate(component.fn.__code__.co_filename, component.fn_name) == []
    assert f"loom run {name}" in help_text
    assert component.description in help_text
    assert [argument.name for argument in arguments_of(component.fn) if not argument.help] == []


def test_all_built_ins_are_found_without_packages() -> None:
    assert set(get_components()) >= {f"{m}.{f}" for m, names in BUILTINS.items() for f in names}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dist.dpd", "no component 'dist.dpd'; did you mean 'dist.ddp'?"),
        ("train.py", "name the function in the file: train.py:FUNCTION"),
        ("none.py:train", "there is no file 'none.py'"),
        ("no.such.module:train", "there is no file and no module 'no.such.module'"),
        ("x" * 10_000, "no component"),
        ("a\nb", "no component"),
        ("", "no component"),
        (":", "no component"),
    ],
)
def test_an_unknown_name_is_told_with_a_way_out(name: str, message: str) -> None:
    with pytest.raises(ComponentNotFoundException) as caught:
        get_component(name)

    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_folder_of_a_components_name_does_not_hide_the_nearest_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dist").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ComponentNotFoundException, match=r"did you mean 'dist\.ddp'"):
        get_component("dist.dpd")


def test_a_file_written_for_torchx_makes_an_app(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", OLD)

    component = get_component(f"{path}:train")
    app = materialize_appdef(component.fn, ["--name", "x", "--env", "A=1"])

    assert isinstance(app, AppDef)
    assert (app.name, component.fn_name, component.source) == ("x", "train", str(path))


def test_annotations_may_be_left_unevaluated(tmp_path: Path) -> None:
    text = "from __future__ import annotations\n" + OLD.replace(
        "Optional[Dict[str, str]]", "dict[str, int] | None"
    )
    path = write(tmp_path / "mine.py", text)

    assert materialize_appdef(get_component(f"{path}:train").fn, ["--name", "x"]).name == "x"


def test_a_path_may_hold_colons_and_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "a:b c" / "my-comp.py", OLD)

    assert materialize_appdef(get_component(f"{path}:train").fn, ["--name", "x"]).name == "x"


def test_neighbours_are_imported_and_two_folders_do_not_mix(tmp_path: Path) -> None:
    text = f"""
import torchx.specs as specs
from naming import first

def train() -> specs.AppDef:
    from lazily import second
    {APP.format("first + second")}
"""
    for folder in ("one", "two"):
        write(tmp_path / folder / "comp.py", text)
        write(tmp_path / folder / "naming.py", f"first = {folder!r}")
        write(tmp_path / folder / "lazily.py", f"second = {folder!r}")
    before, path_before = dict(sys.modules), list(sys.path)

    components = [get_component(f"{tmp_path / f / 'comp.py'}:train") for f in ("one", "two")]
    names = [materialize_appdef(component.fn, []).name for component in components]

    assert names == ["oneone", "twotwo"]
    assert sys.path == path_before
    assert {n for n in sys.modules.keys() - before.keys() if not n.startswith("torchloom")} == set()


def test_a_file_in_a_package_may_import_relatively(tmp_path: Path) -> None:
    write(tmp_path / "acme" / "__init__.py", "")
    write(tmp_path / "acme" / "naming.py", "name = 'relative'")
    text = OLD.replace("import torchx", "from .naming import name as given\nimport torchx")
    path = write(tmp_path / "acme" / "comp.py", text.replace("name=name", "name=given"))

    app = materialize_appdef(get_component(f"{path}:train").fn, ["--name", "x"])

    assert app.name == "relative"
    assert "acme" not in sys.modules


def test_a_component_has_a_real_module_while_it_runs(tmp_path: Path) -> None:
    text = """
import dataclasses, inspect, pickle, sys
import torchx.specs as specs

@dataclasses.dataclass
class Point:
    x: int

def train() -> specs.AppDef:
    assert sys.modules[__name__].train is train
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    assert "def train" in inspect.getsource(train)
    return specs.AppDef(name=__name__, metadata={"file": __file__})
"""
    path = write(tmp_path / "identity.py", text)

    app = materialize_appdef(get_component(f"{path}:train").fn, [])

    assert app == AppDef("identity", metadata={"file": str(path)})


def test_a_file_named_like_a_module_of_python_does_not_replace_it(tmp_path: Path) -> None:
    text = OLD.replace("name=name", "name=sys.modules['pickle'].dumps.__name__")
    path = write(tmp_path / "pickle.py", "import sys\n" + text)

    app = materialize_appdef(get_component(f"{path}:train").fn, ["--name", "x"])

    assert app.name == "dumps"
    assert sys.modules["pickle"] is pickle


def test_an_edit_within_the_clocks_tick_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write(tmp_path / "mine.py", OLD.replace("name=name", "name='one'"))
    os.utime(path, (1, 1))
    get_component(f"{path}:train")

    write(path, OLD.replace("name=name", "name='two'"))
    os.utime(path, (1, 1))

    assert materialize_appdef(get_component(f"{path}:train").fn, ["--name", "x"]).name == "two"


def test_a_class_with_build_is_a_component(tmp_path: Path) -> None:
    text = f"""
from dataclasses import dataclass
import torchx.specs as specs

@dataclass
class Train:
    '''Train with a class.'''
    name: "str"
    count: int = 1

    def build(self) -> specs.AppDef:
        {APP.format("self.name * self.count")}
"""
    path = write(tmp_path / "mine.py", text)

    component = get_component(f"{path}:Train")

    assert materialize_appdef(component.fn, ["--name", "x", "--count", "3"]).name == "xxx"
    assert component.description == "Train with a class."


def test_an_invalid_function_is_told_before_the_file_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", "raise SystemExit\ndef train(a): ...\n")

    with pytest.raises(ComponentValidationException) as caught:
        get_component(f"{path}:train")

    assert [problem.partition("; ")[0] for problem in caught.value.problems] == [
        f"{path}:2: argument 'a' of component 'train' has no type",
        f"{path}:2: component 'train' has no return annotation",
    ]


def test_an_unknown_function_of_a_file_gets_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", OLD)

    with pytest.raises(ComponentNotFoundException, match="did you mean 'train'"):
        get_component(f"{path}:trian")


def test_a_file_that_fails_to_load_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", "import no_such_library\n" + OLD)

    with pytest.raises(ComponentFailed) as caught:
        get_component(f"{path}:train")

    assert f"{path}:1: ModuleNotFoundError: No module named 'no_such_library'" in str(caught.value)
    assert "mine" not in sys.modules


def test_a_component_of_a_file_that_raises_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", OLD.replace("    return", "    return 1 / 0\n    return"))

    with pytest.raises(ComponentFailed) as caught:
        materialize_appdef(get_component(f"{path}:train").fn, ["--name", "x"])

    assert str(caught.value) == (
        f"component mine.train failed at {path}:6: ZeroDivisionError: division by zero"
    )


def test_packages_add_to_the_built_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "loomtest_a",
        "[torchx.components]\nacme = loomtest_a\n_0 = loomtest_a.sub\n"
        "[torchloom.components]\nsolo = loomtest_a.sub:train\n",
        {"loomtest_a/__init__.py": OLD, "loomtest_a/sub.py": OLD.replace("train", "train")},
    )
    monkeypatch.syspath_prepend(tmp_path)

    found = get_components()

    assert {"acme.train", "acme.sub.train", "train", "solo", "dist.ddp"} <= set(found)
    assert find_components().broken == {}
    assert materialize_appdef(get_component("acme.sub.train").fn, ["--name", "x"]).name == "x"


def test_a_broken_package_is_listed_and_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path,
        "loomtest_b",
        "[torchloom.components]\nbad = loomtest_b.broken\ngood = loomtest_b.fine\n"
        "gone = loomtest_b.nowhere\n",
        {
            "loomtest_b/__init__.py": "",
            "loomtest_b/broken.py": "1 / 0",
            "loomtest_b/fine.py": OLD,
        },
    )
    monkeypatch.syspath_prepend(tmp_path)

    catalog = find_components()

    assert {"good.train", "dist.ddp"} <= set(catalog.components)
    assert catalog.broken == {
        "bad": "ZeroDivisionError: division by zero",
        "gone": "ModuleNotFoundError: No module named 'loomtest_b.nowhere'",
    }
    with pytest.raises(ComponentValidationException, match="ZeroDivisionError"):
        get_component("bad.train")
    assert materialize_appdef(get_component("good.train").fn, ["--name", "x"]).name == "x"


def test_a_package_cannot_take_a_built_ins_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path,
        "loomtest_c",
        "[torchx.components]\ndist = loomtest_c\nutils = torchx.components.utils\n",
        {"loomtest_c.py": OLD.replace("train", "ddp") + OLD.replace("train", "extra")},
    )
    monkeypatch.syspath_prepend(tmp_path)

    catalog = find_components()

    assert catalog.components["dist.ddp"].fn is dist.ddp
    assert catalog.broken == {
        "dist.ddp (from entry point dist = loomtest_c)": (
            "the name is taken by a component that is built-in; rename the entry point"
        )
    }
    assert get_component("dist.extra").fn_name == "extra"


def test_a_module_on_the_path_is_named_with_colon_or_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "loomtest_d.py", OLD)
    monkeypatch.syspath_prepend(tmp_path)

    for name in ("loomtest_d:train", "loomtest_d.train"):
        assert materialize_appdef(get_component(name).fn, ["--name", "x"]).name == "x"


@pytest.mark.parametrize("name", [f"{m}.{f}" for m, names in BUILTINS.items() for f in names])
def test_the_source_of_a_built_in_is_a_component_file_of_its_own(name: str, tmp_path: Path) -> None:
    words = {
        "dist.ddp": ["--script", "t.py", "-j", "2x2"],
        "dist.loom": ["--script", "t.py"],
        "dist.spmd": ["--script", "t.py"],
        "utils.binary": ["--entrypoint", "x"],
        "utils.copy": ["--src", "a", "--dst", "b"],
        "utils.python": ["-m", "x"],
        "utils.touch": ["--file", "x"],
    }.get(name, [])
    path = write(tmp_path / "copied.py", get_builtin_source(name))

    copied = get_component(f"{path}:{name.partition('.')[2]}")

    assert materialize_appdef(copied.fn, words) == materialize_appdef(get_component(name).fn, words)


def test_authors_can_ask_whether_a_function_is_a_component(tmp_path: Path) -> None:
    module = ModuleType("mine")
    module.__file__ = str(write(tmp_path / "mine.py", OLD + "\ndef other(): ...\n"))
    case = ComponentTestCase()

    case.validate(module, "train")
    with pytest.raises(ComponentValidationException):
        case.validate(module, "other")


@pytest.mark.process
def test_a_built_in_is_found_and_called_without_slow_imports() -> None:
    program = (
        "import sys\n"
        "from torchloom.components.finder import get_component\n"
        "from torchloom.specs.builders import materialize_appdef\n"
        "materialize_appdef(get_component('dist.ddp').fn, ['--script', 'a.py'])\n"
        "slow = {'yaml', 'importlib.metadata', 'argparse', 'json', 'logging',"
        " 'importlib.resources', 'torchloom.specs.file_linter'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")
