import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchloom.components.dist import ddp, loom, parse_nnodes, safe_role_name
from torchloom.components.finder import get_component
from torchloom.errors import UserError
from torchloom.specs.api import AppDef, Resource, Role, macros
from torchloom.specs.builders import materialize_appdef


def app(*words: str) -> AppDef:
    return materialize_appdef(get_component("dist.loom").fn, words)


def test_a_bare_script_runs_through_our_own_agent() -> None:
    assert app("--script", "dir/train.py", "-j", "4", "--", "--lr", "1e-3") == AppDef(
        "train",
        [
            Role(
                name="train",
                image="",
                entrypoint="loom",
                args=["launch", "-n", "4", "--", "python", "dir/train.py", "--lr", "1e-3"],
                resource=Resource(cpu=2, gpu=0, memMB=1024),
            )
        ],
    )


def test_several_nodes_are_several_replicas() -> None:
    role = app("-m", "pkg.main", "-j", "2x8", "--python", "python3.12").roles[0]

    assert role.args == [
        *("launch", "-n", "8", "--nnodes", "2", "--"),
        *("python3.12", "-m", "pkg.main"),
    ]
    assert (role.name, role.num_replicas, role.min_replicas) == ("main", 2, None)


def test_an_elastic_job_says_its_least_number_of_nodes() -> None:
    role = app("--script", "t.py", "-j", "1:3x2").roles[0]

    assert role.args[:6] == ["launch", "-n", "2", "--nnodes", "1:3", "--"]
    assert (role.num_replicas, role.min_replicas) == (3, 1)


def test_a_command_runs_as_it_is() -> None:
    made = app("--", "./my bench.sh", "-x", "a b")

    assert made.name == "my bench"
    assert made.roles[0].name == "my-bench"
    assert made.roles[0].args == ["launch", "-n", "1", "--", "./my bench.sh", "-x", "a b"]


def test_name_environment_labels_and_debug_reach_the_app() -> None:
    made = app("--script", "t.py", "--name", "e/r", "--env", "A=1", "--metadata", "k=v")
    debugged = app("--script", "t.py", "--debug", "True")

    assert (made.name, made.metadata) == ("r", {"k": "v"})
    assert made.roles[0].env == {
        "A": "1",
        "TORCHX_TRACKING_EXPERIMENT_NAME": "e",
        "TORCHX_TRACKING_RUN_NAME": "r",
    }
    assert debugged.roles[0].env["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "dist.loom needs --script, -m, or a command after --"),
        (["--script", "a.py", "-m", "b"], "give --script or -m, not both"),
        (["--script", "a.py", "-j", "0x2"], "-j 0x2 asks for no nodes"),
        (["--script", "a.py", "-j", "1x0"], "-j 1x0 asks for no nodes"),
        (["--script", "a.py", "-j", "3:2x1"], "a minimum above the maximum"),
        (["--script", "a.py", "-j", "2x"], "-j '2x' is not"),
        (["--script", "a.py", "-j", "\u0662"], "is not"),
        (["--script", "a.py", "-h", "gpu.smal"], "did you mean 'gpu.small'?"),
    ],
)
def test_what_cannot_run_is_told(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        app(*words)

    assert message in str(caught.value)


@given(st.lists(st.text("$x{} ")))
@example(["$$", "$$$", "${HOME}", "$$x"])
def test_a_programs_words_survive_macro_substitution(words: list[str]) -> None:
    values = macros.Values(img_root="R", app_id="A", replica_id="0", rank0_env="E")

    role = values.apply(loom("cmd", *words).roles[0])

    assert role.args[4:] == ["cmd", *words]


@given(st.text(min_size=1))
def test_any_script_gives_a_role_name_that_engines_take(name: str) -> None:
    made = safe_role_name(name)

    assert made
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert len(made) <= 63


def test_the_topology_keeps_its_text() -> None:
    assert parse_nnodes("1:3x2") == (1, 3, 2, "1:3")
    assert parse_nnodes("4") == (1, 1, 4, "1")


def test_a_component_leaves_its_callers_dictionaries_alone() -> None:
    env = {"A": "1"}
    metadata = {"k": "v"}

    made = ddp(script="t.py", env=env, metadata=metadata, debug=True)
    made.metadata["x"] = "y"

    assert (env, metadata) == ({"A": "1"}, {"k": "v"})
