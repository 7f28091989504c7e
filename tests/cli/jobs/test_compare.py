"""Runs side by side: every part has its rows, what is the same is not there, the best is marked."""

from typing import Any

from torchloom.cli.commands.cmd_compare import lines_of

ROW = {"missing": [False, False]}


def told(**parts: Any) -> dict[str, Any]:
    runs = [{"run_id": "a-1", "name": "a"}, {"run_id": "b-2", "name": "b"}]
    empty = {"config": [], "same": 3, "metrics": [], "summary": [], "git": []}
    return {"runs": runs, **empty, "packages": [], "environment": [], **parts}


def test_each_part_has_a_head_and_only_where_there_is_something() -> None:
    found = told(
        summary=[{"name": "steps", "values": [10, None], **ROW}],
        config=[{"name": "lr", "values": [0.1, None], "missing": [False, True]}],
        git=[
            {"name": "commit", "values": ["0123456789ab", "ffff456789ab"], **ROW},
            {"name": "dirty", "values": [True, False], **ROW},
            {"name": "diff", "values": [None, None], **ROW},
        ],
    )

    assert lines_of(found, whole=False) == [
        ["name", "a", "b"],
        ["steps", "10", "-"],
        ["", "", ""],
        ["CONFIG, 3 the same", "", ""],
        ["lr", "0.1", "-"],
        ["", "", ""],
        ["SOURCE", "", ""],
        ["commit", "01234567", "ffff4567"],
        ["dirty", "yes", "no"],
    ]


def test_metrics_have_last_and_best_and_the_best_run_is_marked() -> None:
    loss = {"name": "loss", "last": [0.5, "nan"], "best": [0.25, None], "best_step": [7, None]}
    score = {"name": "bleu", "last": [1, 2], "best": [1, 2], "best_step": [3, 4]}
    ours = {"name": "loom/cpu", "last": [1, 2], "best": [1, 2], "best_step": [3, 4]}
    found = told(metrics=[{**loss, "winner": None}, {**score, "winner": 1}, {**ours, "winner": 1}])

    assert lines_of(found, whole=False)[-2:] == [
        ["loss", "0.5 (0.25 @ 7)", "nan"],
        ["bleu", "1 (1 @ 3)", "2 (2 @ 4) *"],
    ]
    assert lines_of(found, whole=True)[-1][0] == "loom/cpu"


def test_many_packages_are_cut_with_a_word_how_to_see_all() -> None:
    packages = [{"name": f"p{n}", "values": ["1", "2"], **ROW} for n in range(30)]

    assert lines_of(told(packages=packages), whole=False)[-1] == ["and 10 more, --all", "", ""]
    assert lines_of(told(packages=packages), whole=True)[-1] == ["p29", "1", "2"]
