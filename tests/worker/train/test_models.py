"""Models by name, and whether they take what they are given."""

from typing import Any

import pytest

from torchloom.specs.exceptions import SpecError
from torchloom.worker.train.hyperparameters import hyper_of

from .jobs import job

pytestmark = pytest.mark.needs("torch")


class Seen:
    """What a model is told of samples."""

    def __init__(self, kind: str, *shape: int, classes: int = 5) -> None:
        self.kind, self.shape, self.classes = kind, shape, classes

    def __len__(self) -> int:
        return 1

    def take(self, indices: Any) -> Any:
        raise AssertionError("not asked for")


def made(samples: Seen, **fields: Any) -> Any:
    from torchloom.worker.train.models import make_model

    spec = job(**fields)
    return make_model(spec, hyper_of(spec), samples)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("mlp", (6,)),
        ("mlp", (2, 3, 4)),
        ("cnn", (784,)),
        ("cnn", (9, 5)),
        ("cnn", (3, 8, 12)),
    ],
)
def test_a_model_answers_with_a_number_for_each_class(model: str, shape: tuple[int, ...]) -> None:
    import torch

    found = made(Seen("features", *shape), model=model)

    assert found(torch.zeros(7, *shape)).shape == (7, 5)


def test_a_transformer_looks_back_only() -> None:
    import torch

    hyper = {"width": 16, "heads": 2, "dropout": 0.5}
    model = made(Seen("tokens", 8), hyper=hyper, model="transformer", dataset="text:x").eval()
    tokens = torch.arange(8)[None] % 5
    changed = tokens.clone()
    changed[0, 5] = 3

    before, after = model(tokens), model(changed)

    assert before.shape == (1, 8, 5)
    assert torch.allclose(before[0, :5], after[0, :5])
    assert not torch.allclose(before[0, 5:], after[0, 5:])


def test_layers_and_widths_are_what_the_job_says() -> None:
    from torch import nn

    found = made(Seen("features", 6), hyper={"hidden": 3, "layers": 4, "dropout": 0.2})

    linear = [(each.in_features, each.out_features) for each in found if type(each) is nn.Linear]
    assert linear == [(6, 3), (3, 3), (3, 3), (3, 3), (3, 5)]
    assert [each.p for each in found if type(each) is nn.Dropout] == [0.2] * 4


@pytest.mark.parametrize(
    ("model", "samples", "path", "words"),
    [
        ("cnn", Seen("features", 783), "model", "cnn takes pictures of at least 4 x 4"),
        ("cnn", Seen("features", 3, 3), "model", "a sample has the shape (3, 3): take mlp"),
        ("cnn", Seen("features", 2, 2, 9, 9), "model", "cnn takes pictures"),
        ("mlp", Seen("tokens", 8), "model", "mlp does not fit dataset"),
        ("mlp", Seen("features", 8, classes=0), "dataset", "give it an attribute `classes`"),
    ],
)
def test_samples_that_do_not_fit_are_refused(
    model: str, samples: Seen, path: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        made(samples, model=model, dataset="module:mine.data")

    assert caught.value.path == path
    assert words in caught.value.problem
