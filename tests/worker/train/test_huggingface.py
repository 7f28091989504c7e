"""Ready-made training of models of transformers: their own loss, restarts, what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.specs.exceptions import SpecError

from .conftest import Train
from .jobs import job, words
from .test_jax import lines_of
from .test_resume import lived

pytestmark = pytest.mark.needs("transformers")
SMALL = {"width": 16, "heads": 2, "context": 12, "batch_size": 4}
CONFIG = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 256}


@pytest.fixture
def song(tmp_path: Path) -> Path:
    path = tmp_path / "song.txt"
    path.write_text("row row row your boat gently down the stream\n" * 14)
    return path


@pytest.fixture
def adapter() -> Any:
    from torchloom.worker.train.language_model import HuggingFaceAdapter

    return HuggingFaceAdapter()


def hugging(song: Path, hyper: dict[str, Any] | None = None, **fields: Any) -> Any:
    named = {"framework": "huggingface", "model": "gpt2", "dataset": f"text:{song}", **fields}
    return job({**SMALL, **(hyper or {})}, **named)


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_a_step_takes_the_loss_of_transformers_own(
    adapter: Any, song: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from torchloom.worker.train.pytorch import TorchContext

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    spec = hugging(song, {"optimizer": "sgd", "lr": 0.0}, model=model, seed=4)
    state = adapter.begin(spec, adapter.build_model(spec), 10)
    batch = next(iter(adapter.build_dataloader(spec, 0, 1)))
    ((tokens, following),) = batch
    inner = state.module.inner
    _, metrics = adapter.train_step(state, batch, TorchContext(0, 1, torch.device("cpu")))

    whole = torch.cat([tokens, following[:, -1:]], 1)
    expected = float(inner(input_ids=whole, labels=whole).loss.detach())
    assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-5)
    sizes = inner.config.hidden_size, inner.config.num_hidden_layers, inner.config.vocab_size
    assert sizes == (16, 2, 256)


@pytest.mark.process
def test_two_ranks_go_on_with_the_bits_of_an_undisturbed_training(
    train: Train, song: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "n_positions": 12}))
    fields = {"framework": "huggingface", "model": str(config), "dataset": f"text:{song}"}
    hyper = {"context": 12, "batch_size": 4, "lr": 0.01}
    told = words(hyper, checkpointing={"enabled": True, "every_n_steps": 2}, seed=5, **fields)
    place = str(tmp_path / "checkpoints" / "ckpt_step_00004")
    for rank in range(2):
        (tmp_path / f"rank-{rank}").touch()

    def digests(name: str, **env: str) -> list[list[str]]:
        folder = tmp_path / name
        lived(train, tmp_path, told, 2, LOOM_DIGESTS=str(folder), **env)
        return [[line["digest"] for line in lines_of(folder, rank)] for rank in range(2)]

    whole = digests("whole")
    digests("first", LOOM_UNTIL="4")
    again = digests("again", LOOM_RESUME=place, LOOM_GENERATION="1")

    assert len(whole[0]) == len(set(whole[0])) > 6
    assert again == [found[4:] for found in whole]


@pytest.mark.parametrize(
    ("fields", "hyper", "path", "said"),
    [
        ({"model": "gtp2"}, {}, "model", "did you mean 'gpt2'"),
        ({"model": "no/config.json"}, {}, "model", "no file 'no/config.json'"),
        ({}, {"heads": 3}, "hyperparameters.heads", "cannot share a width of 16"),
        ({"model": "CONFIG"}, {"width": 16}, "hyperparameters.width", "sizes of its own"),
        ({"model": "CONFIG"}, {"context": 64}, "hyperparameters.context", "reads 12 tokens"),
        ({"model": "CONFIG", "vocab_size": 99}, {}, "model", "vocab_size of 99"),
        ({"model": "CONFIG", "model_type": "t5"}, {}, "model", "predicts no tokens"),
        ({"model": "CONFIG", "model_type": "bert"}, {}, "model", "reads the tokens"),
        ({"model": "CONFIG", "n_layer": "two"}, {}, "model", "does not fit"),
    ],
)
def test_what_does_not_fit_is_named_by_field(
    adapter: Any, song: Path, fields: dict[str, Any], hyper: dict[str, Any], path: str, said: str
) -> None:
    model = fields.pop("model", "gpt2")
    sizes: dict[str, Any] = dict(SMALL)
    if model == "CONFIG":
        file = song.with_name("config.json")
        positions = {"n_positions": 12, "max_position_embeddings": 12, "hidden_size": 16}
        positions |= {"num_attention_heads": 2}
        file.write_text(json.dumps({**CONFIG, **positions, **fields}))
        model, sizes = str(file), {"context": 12}

    named = {"framework": "huggingface", "model": model, "dataset": f"text:{song}"}
    with pytest.raises(SpecError) as caught:
        adapter.build_model(job({**sizes, **hyper}, **named))

    assert caught.value.path == path
    assert said in caught.value.problem
