"""Whole trainings on real ranks, beside the same training written by hand in plain torch."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ...harness.forked_ranks import Zygote, free_port, seats
from .conftest import SCRIPTS, Train, rows
from .jobs import words

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
HYPER: dict[str, Any] = {"batch_size": 8, "epochs": 3, "lr": 0.1, "accumulate": 1}
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3, "clip": 0.5}


def by_hand(zygote: Zygote, out: Path, world: int, **told: Any) -> list[list[Any]]:
    """Run the training written in plain torch; return the ranks' rows."""
    out.mkdir()
    env = {"OUT": str(out), "TOLD": json.dumps({"cosine": False, "clip": 0.5, **told})}
    script = (SCRIPTS / "plain.py").read_text()
    ended = zygote.run(script, seats(world, free_port(), **env), install=False)
    assert [code for code, _ in ended] == [0] * world, ended
    return rows(out, world)


def numbers(line: str) -> dict[str, float]:
    """Return the metrics of the summary."""
    return {name: float(value) for name, value in re.findall(r"([a-z/]+) ([\d.e+-]+)", line)}


@pytest.mark.parametrize(
    ("world", "accumulate", "cosine"), [(2, 1, False), (2, 3, True), (3, 1, True)]
)
def test_ranks_end_each_step_with_the_weights_of_plain_torch(
    train: Train,
    zygote: Zygote,
    table: Path,
    tmp_path: Path,
    world: int,
    accumulate: int,
    cosine: bool,
) -> None:
    hyper = {
        **HYPER,
        **SGD,
        "accumulate": accumulate,
        "schedule": "cosine" if cosine else "constant",
    }
    told = words(hyper, model="module:mine.net", dataset=f"npz:{table}", seed=5)

    ended = train(told, world)

    assert [code for code, _ in ended] == [0] * world, ended
    both = {**HYPER, "accumulate": accumulate, "cosine": cosine, "table": str(table), "seed": 5}
    expected = by_hand(zygote, tmp_path / "plain", world, **both)
    assert len(expected[0]) == 3 * math.ceil(math.ceil(183 / world) / (8 * accumulate))
    assert rows(tmp_path, world) == expected


def test_rank_0_tells_in_one_line_what_came_of_it(train: Train) -> None:
    ended = train(words({"epochs": 2}, dataset="synthetic:2000"), 2)

    assert [code for code, _ in ended] == [0, 0], ended
    line, rest = ended[0][1], ended[1][1]
    assert line.startswith("x: 30 steps, 2 workers, ")
    assert line.count("\n") == 1
    assert rest == ""
    found = numbers(line)
    assert found["eval/accuracy"] > 0.8
    assert found["eval/loss"] < 1.0


@pytest.mark.parametrize("world", [1, 2])
def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(
    train: Train, table: Path, tmp_path: Path, world: int
) -> None:
    def weights(seed: int) -> list[list[Any]]:
        hyper = {**HYPER, "loader_workers": seed % 2}
        told = words(hyper, model="module:mine.noisy", dataset=f"npz:{table}", seed=seed)
        ended = train(told, world)
        assert [code for code, _ in ended] == [0] * world, ended
        return rows(tmp_path, world)

    first, again, other = weights(3), weights(3), weights(4)

    assert first == again
    assert len({each[-1][-1] for each in first}) == 1  # all ranks have one model
    assert first[0][-1][-1] != other[0][-1][-1]


def test_the_largest_seed_is_one(train: Train) -> None:
    ended = train(words(seed=2**63 - 1), 2)

    assert [code for code, _ in ended] == [0, 0], ended


@pytest.mark.parametrize(
    ("hyper", "fields", "least"),
    [
        ({"amp": "bf16"}, {}, 0.8),
        ({"amp": False, "optimizer": "adamw"}, {}, 0.8),
        ({"schedule": "onecycle", "lr": 0.01, "dropout": 0.1}, {}, 0.8),
        ({"loader_workers": 2}, {"model": "cnn"}, 0.5),
        ({"accumulate": 7, "lr": 0.01}, {}, 0.8),
    ],
)
def test_trainings_of_all_kinds_learn(
    train: Train, hyper: dict[str, Any], fields: dict[str, Any], least: float
) -> None:
    ((code, text),) = train(words(hyper, **{"dataset": "synthetic:3000", **fields}))

    assert code == 0, text
    assert numbers(text)["eval/accuracy"] > least


def test_a_transformer_learns_a_text(train: Train, tmp_path: Path) -> None:
    text = tmp_path / "song.txt"
    text.write_text("row row row your boat gently down the stream\n" * 200)
    hyper = {"context": 24, "width": 32, "heads": 2, "layers": 1, "lr": 0.01, "epochs": 2}
    told = words({**hyper, "batch_size": 16}, model="transformer", dataset=f"text:{text}")

    ended = train(told, 2)

    assert [code for code, _ in ended] == [0, 0], ended
    assert numbers(ended[0][1])["eval/accuracy"] > 0.7


def test_a_model_with_a_loss_of_its_own_learns_what_is_no_class(train: Train) -> None:
    fields = {"model": "module:mine.regression", "dataset": "module:mine.line"}

    ((code, text),) = train(words({"epochs": 60, "lr": 0.1, "own": 1}, **fields))

    assert code == 0, text
    assert numbers(text)["eval/loss"] < 0.01
    assert "accuracy" not in text


def test_a_loss_that_is_not_finite_ends_in_words_and_exit_code_1(train: Train) -> None:
    fields = {"model": "module:mine.lost", "dataset": "module:mine.line"}

    ended = train(words(**fields), 2)

    assert [code for code, _ in ended] == [1, 1]
    assert "loss nan" in ended[0][1]
    assert "the loss is not finite: lower lr" in ended[1][1]


def test_data_of_two_samples_is_enough_for_three_workers(train: Train) -> None:
    ended = train(words({"epochs": 2}, dataset="synthetic:2"), 3)

    assert [code for code, _ in ended] == [0] * 3, ended


def test_data_that_a_function_draws_is_the_same_on_all_ranks(train: Train, tmp_path: Path) -> None:
    told = words({"own": 1}, model="module:mine.net", dataset="module:mine.drawn", seed=7)

    ended = train(told, 2)

    assert [code for code, _ in ended] == [0, 0], ended
    assert (tmp_path / "drawn-0").read_text() == (tmp_path / "drawn-1").read_text()


def test_an_error_of_ones_own_function_is_shown_as_python_shows_it(train: Train) -> None:
    ((code, text),) = train(words(dataset="module:mine.failing"), RANK="1")

    assert code == 1
    assert text.endswith("FileNotFoundError: no such data here\n")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (words(model="module:os.system; rm -rf"), "model: 'module:os.system; rm -rf' names no"),
        (words(dataset="synthetic:-1"), "dataset: 'synthetic:-1': write a number of samples"),
        (words(dataset="synthetic:" + "9" * 400), "dataset: 'synthetic:999"),
        (words(dataset="synthetic:٣٤"), "dataset: 'synthetic:٣٤': write a number"),
        (words(dataset="npz:/proc/self/mem/x"), "dataset: no file '/proc/self/mem/x'"),
        (words(dataset="npz:/dev/zero"), "dataset: '/dev/zero' is not a file"),
        (words(dataset="npz:/"), "dataset: '/' is not a file"),
        (words(dataset="npz:" + "x" * 1000), "dataset: no file 'xxx"),
        (words(model="transformer", dataset="text:nowhere"), "dataset: no file 'nowhere'"),
        (words(dataset="module:nowhere.data"), "dataset: no module nowhere: start the job where"),
        (words(dataset="module:json.nothing"), "the module json has no function nothing"),
        (words(dataset="module:json.dumps"), "the first sample of module:json.dumps is a str"),
        (
            words(model="module:json.dumps"),
            "module:json.dumps returned str: it must return a torch",
        ),
        (words(model="transformer", dataset="module:mine.line"), "model: transformer does not fit"),
        (words(dataset="module:mine.line"), "dataset: module:mine.line does not say how many"),
        (words({"amp": "fp16"}), "hyperparameters.amp: fp16 needs a GPU"),
        (words(resources={"gpus_per_worker": 1}), "resources.gpus_per_worker: is 1, and this"),
    ],
)
def test_a_job_that_cannot_be_trained_is_told_in_one_line(
    train: Train, told: str, said: str
) -> None:
    ((code, text),) = train(told, TORCH_DEVICE="cpu")

    assert code == 2, text
    assert said in text
    assert text.count("\n") == 1
    assert text.startswith("loom train: ")
    assert len(text) < 500
