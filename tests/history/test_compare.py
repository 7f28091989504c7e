"""What differs between runs is found under flat names; what is the same is only counted."""

import pytest

from torchloom.history.compare import RunDifference, differences, flat, goal_of, shared, winner


def test_nested_values_have_dotted_names_and_lists_are_values() -> None:
    values = {"lr": 0.1, "resources": {"workers": 4, "more": {"x": []}}, "empty": {}}

    assert dict(flat(values)) == {
        "lr": 0.1,
        "resources.workers": 4,
        "resources.more.x": [],
        "empty": {},
    }


def test_only_what_differs_is_told_by_name_with_one_value_a_run() -> None:
    runs = [{"lr": 0.1, "seed": 1, "a": {"b": 1}}, {"lr": 0.2, "seed": 1}, {"lr": 0.1, "seed": 1}]

    assert differences(runs) == [
        RunDifference("a.b", (1, None, None), (False, True, True)),
        RunDifference("lr", (0.1, 0.2, 0.1), (False, False, False)),
    ]
    assert shared(runs) == 1


def test_a_value_of_none_is_not_a_missing_one_and_one_is_not_true() -> None:
    runs = [{"elastic": None, "on": True}, {"on": 1}]

    assert [row.name for row in differences(runs)] == ["elastic", "on"]


def test_names_that_are_asked_for_are_told_though_they_are_the_same() -> None:
    assert differences([{"steps": 3}, {"steps": 3}], ["steps", "samples"]) == [
        RunDifference("steps", (3, 3), (False, False)),
        RunDifference("samples", (None, None), (True, True)),
    ]


@pytest.mark.parametrize(
    ("values", "lower", "best"),
    [
        ([0.3, 0.2, 0.5], True, 1),
        ([0.3, 0.2, 0.5], False, 2),
        ([0.2, 0.2], True, None),  # nobody is better
        ([0.2, None], True, None),  # nobody to be better than
        (["nan", 0.5, 0.4], True, 2),
        ([float("-inf"), 0.5, 0.4], True, 2),
        ([float("inf"), 0.5, 0.4], False, 1),
        ([float("nan"), 0.5], True, None),
        ([], True, None),
    ],
)
def test_the_best_of_the_numbers_wins(values: list[object], lower: bool, best: int | None) -> None:
    assert winner(values, lower) == best


LOWER = (
    *("loss", "eval/Loss", "trainLoss", "val_nll", "word_error_rate", "perplexity", "ppl", "rmse"),
    *(
        "test/RMSE",
        "WER",
        "cer",
        "step_time",
        "loom/step_seconds",
        "cross_entropy",
        "bits_per_byte",
    ),
    *("accuracy_error", "kl", "MAE", "valloss", "loss_1", "mean_absolute_error", "fid_score"),
)
HIGHER = (
    *(
        "accuracy",
        "val_acc",
        "acc1",
        "top5",
        "Top-1",
        "f1",
        "macro_F1",
        "bleu",
        "BLEU-4",
        "roc_auc",
    ),
    *("mAP", "mIoU", "throughput", "tokens_per_second", "samples/sec", "reward", "episode_return"),
    *("precision@5", "recall", "psnr", "R2", "win_rate", "log_likelihood", "rougeL", "score"),
)
UNKNOWN = (
    "lr",
    "grad_norm",
    "step",
    "epoch",
    "tokens",
    "memory",
    "accumulated",
    "f",
    "r",
    "x",
    "loss_scale",
    "",
    "7",
)


@pytest.mark.parametrize(
    ("names", "goal"), [(LOWER, "min"), (HIGHER, "max"), (UNKNOWN, None)], ids=str
)
def test_which_way_a_metric_is_to_go_is_in_its_name(names: tuple[str, ...], goal: str) -> None:
    assert {name: goal_of(name) for name in names} == dict.fromkeys(names, goal)


def test_what_a_run_says_of_a_metric_goes_before_its_name() -> None:
    assert goal_of("score", {"score": "min"}) == "min"
    assert goal_of("rank", {"rank": "max"}) == "max"
    assert goal_of("loss", {"loss": "sideways"}) == "min"
