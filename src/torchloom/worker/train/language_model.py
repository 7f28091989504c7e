"""The Hugging Face adapter: a language model of `transformers` from a configuration alone.

Nothing is downloaded and nothing is unpickled: `model` is a type (`gpt2`), whose sizes are the
job's hyperparameters, or the path of a `config.json`. The tokens are the bytes of a text.
"""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from torchloom.errors import nearest, shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker import dist as ranks
from torchloom.worker.train.data import BYTES
from torchloom.worker.train.hyperparameters import TABLE, Hyper, hyper_of, is_config
from torchloom.worker.train.pytorch import PyTorchAdapter, seed_of

_UNTYPED: Any = AutoConfig, AutoModelForCausalLM, CONFIG_MAPPING
_config, _model, _types = _UNTYPED
_SIZES = ("width", "layers", "heads")
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")  # bytes have no such tokens
_SEEN = 8  # tokens of the windows by which a model is checked


class HuggingFaceAdapter(PyTorchAdapter):
    """PyTorch's training of a model of `transformers`."""

    def build_model(self, spec: JobSpec) -> nn.Module:
        """Return the model, with weights from the job's seed."""
        hyper = hyper_of(spec)
        config = config_of(spec, hyper)
        ranks.seed_everything(seed_of(spec))
        try:
            inner = _model.from_config(config)
        except (ValueError, TypeError, ImportError, RuntimeError) as error:
            problem = f"transformers cannot make it: {shorten(str(error), 200)}"
            raise SpecError("model", problem) from error
        model = LanguageModel(inner)
        if _sees_ahead(model, hyper.context):
            problem = "reads the tokens that it is to predict"
            raise SpecError("model", f"{shorten(spec.model)} {problem}: take a causal one")
        return model


class LanguageModel(nn.Module):
    """A model of `transformers` that takes tokens and returns logits, as ours do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each token."""
        logits: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits


def config_of(spec: JobSpec, hyper: Hyper) -> Any:
    """Return the configuration that a job names; raise SpecError if it does not fit."""
    config = _read(spec) if is_config(spec) else _sized(spec, hyper)
    tokens = getattr(config, "vocab_size", None)
    if not isinstance(tokens, int) or tokens < BYTES:
        problem = f"has a vocab_size of {tokens}, and the tokens are the {BYTES} bytes"
        raise SpecError("model", f"{shorten(spec.model)} {problem}: give {BYTES}")
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and longest < hyper.context:
        problem = f"is {hyper.context}, and the model reads {longest} tokens at most"
        raise SpecError("hyperparameters.context", f"{problem}: give {longest} or less")
    return config


def _sized(spec: JobSpec, hyper: Hyper) -> Any:
    """Return the configuration of a type, in the sizes of the job."""
    if spec.model not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known = "a type of transformers that predicts tokens, or the path of a config.json"
        hint = nearest(spec.model, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) or f"give {known}"
        raise SpecError("model", f"no {shorten(spec.model)!r}; {hint}")
    sizes = {
        "hidden_size": hyper.width,
        "num_hidden_layers": hyper.layers,
        "num_attention_heads": hyper.heads,
        "num_key_value_heads": hyper.heads,
        "intermediate_size": 4 * hyper.width,
        "ffn_dim": 4 * hyper.width,
        "word_embed_proj_dim": hyper.width,
        "head_dim": hyper.width // hyper.heads,
        "max_position_embeddings": hyper.context,
        "vocab_size": BYTES,
        "is_decoder": True,
    }
    usual = _types[spec.model]()
    given = {name: value for name, value in sizes.items() if hasattr(usual, name)}
    return _config.for_model(spec.model, **given, **dict.fromkeys(_SPECIAL))


def _read(spec: JobSpec) -> Any:
    """Return the configuration of a file, in its own sizes."""
    path = Path(spec.model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    shown = repr(shorten(str(path), 200))
    try:
        found = json.loads(path.read_bytes())
        kind = found.pop("model_type")
    except OSError as error:
        remedy = "give a path that every worker can see, from its working folder on"
        raise SpecError("model", f"no file {shown}: {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{shown} is not a configuration of transformers"
        raise SpecError("model", f"{problem}: it has no model_type") from error
    for name in _SIZES:
        if name in spec.hyperparameters and spec.hyperparameters[name] != TABLE[name][0]:
            problem = f"{shorten(spec.model)} has sizes of its own"
            raise SpecError(f"hyperparameters.{name}", f"{problem}: remove it, or change the file")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        problem = f"its model_type {shorten(repr(kind))} predicts no tokens"
        raise SpecError("model", f"{problem}: take a causal language model")
    found.pop("auto_map", None)  # code of its own is not run
    try:
        return _config.for_model(kind, **found)
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        why = shorten(" ".join(str(error).split()), 200)
        raise SpecError("model", f"{shown} does not fit: {why}") from error


@torch.no_grad()
def _sees_ahead(model: LanguageModel, context: int) -> bool:
    """Tell whether what a model predicts after the first tokens depends on the last one."""
    length = min(context, _SEEN)
    if length < 2:
        return False
    windows = torch.zeros(2, length, dtype=torch.int64)
    windows[1, -1] = 1
    model.eval()
    one, other = model(windows)[:, :-1]
    model.train()
    return not torch.allclose(one, other, atol=1e-5)
