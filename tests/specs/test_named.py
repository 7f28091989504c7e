"""Named resources: generic, the user's own, those of packages."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchloom.errors import Ambiguous, UserError
from torchloom.specs import NULL_RESOURCE, Resource, get_named_resources, named_resources, resource
from torchloom.specs.named import NamedResources, installed
from torchloom.specs.resources import resource_tags
from torchloom.torchx import plugins


def tagged(name: str, resource: Resource) -> Resource:
    resource.tags[resource_tags.RESOURCE_NAME] = name
    return resource


def test_a_name_wins_over_sizes() -> None:
    small = tagged("gpu.small", Resource(8, 1, 32 * 1024))

    assert resource(cpu=3, h="gpu.small") == small
    assert get_named_resources("GPU.Small") == named_resources["gpu.small"] == small
    assert resource(cpu=3) == Resource(3, 0, 1024)


def test_the_null_resource_has_two_names() -> None:
    assert named_resources["NULL"] is named_resources["MISSING"] is NULL_RESOURCE


def test_an_unknown_name_is_a_key_error_with_the_nearest_one() -> None:
    with pytest.raises(KeyError) as caught:
        resource(h="gpu.smal")

    assert isinstance(caught.value, UserError)
    assert str(caught.value) == "no named resource 'gpu.smal'; did you mean 'gpu.small'?"


def test_a_name_like_no_other_lists_what_there_is() -> None:
    library = NamedResources(lambda: {"a.one": Resource})

    with pytest.raises(KeyError) as caught:
        library["zzzzzz"]

    assert str(caught.value) == "no named resource 'zzzzzz'; known: MISSING, NULL, a.one"


def test_a_name_that_two_resources_have_but_for_case_is_ambiguous() -> None:
    library = NamedResources(lambda: {"A.b": Resource, "a.B": Resource})

    with pytest.raises(Ambiguous, match=r"named resource 'a\.b' is ambiguous: A.b, a.B"):
        library["a.b"]

    assert library["a.B"] == tagged("a.B", Resource())


def test_the_library_is_loaded_once_and_makes_fresh_resources() -> None:
    loads: list[int] = []

    def load() -> dict[str, type[Resource]]:
        loads.append(1)
        return {"x": Resource}

    library = NamedResources(load)
    before = list(loads)

    assert library["x"] == library["x"]
    assert library["x"] is not library["x"]
    assert ("X" in library, "y" in library, 3 in library) == (True, False, False)
    assert (sorted(library), len(library)) == (["MISSING", "NULL", "x"], 3)
    assert (before, loads) == ([], [1])


def test_a_resource_of_another_library_becomes_ours() -> None:
    @dataclass
    class Theirs:
        cpu: int
        gpu: int
        memMB: int  # noqa: N815
        tags: dict[str, object] = field(default_factory=dict)

    library = NamedResources(lambda: {"x": lambda: Theirs(1, 2, 3)})

    assert library["x"] == tagged("x", Resource(1, 2, 3))


def test_the_user_s_module_wins_over_the_generic_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_sizes.py").write_text(
        "from torchloom.specs import Resource\n"
        "NAMED_RESOURCES = {'cpu.nano': lambda: Resource(9), 'mine': lambda: Resource(7)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCHX_CUSTOM_NAMED_RESOURCES", "my_sizes")

    library = NamedResources(installed)

    assert (library["cpu.nano"].cpu, library["mine"].cpu, library["gpu.small"].cpu) == (9, 7, 8)
    sys.modules.pop("my_sizes")


def test_a_module_that_is_not_there_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHX_CUSTOM_NAMED_RESOURCES", "no_such_module")

    with pytest.raises(UserError, match="TORCHX_CUSTOM_NAMED_RESOURCES names 'no_such_module'"):
        NamedResources(installed)["cpu.nano"]


@pytest.mark.parametrize("group", ["torchx.named_resources", "torchloom.named_resources"])
def test_an_installed_package_adds_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    (tmp_path / "sizes_pkg.py").write_text(
        "from torchloom.specs import Resource\ndef big(): return Resource(64, 8, 1)\n"
    )
    info = tmp_path / "sizes_pkg-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sizes-pkg\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[{group}]\nbig = sizes_pkg:big\nbroken = sizes_pkg:gone\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins.registry.cache_clear()

    library = NamedResources(installed)

    assert library["big"] == tagged("big", Resource(64, 8, 1))
    with pytest.raises(UserError, match="named resource 'broken'"):
        library["broken"]
    sys.modules.pop("sizes_pkg")
    plugins.registry.cache_clear()
