"""What the ranks and their judge train: models, samples and the loss."""

import torch
from torch import nn

from torchloom.worker.train.hyperparameters import Hyper
from torchloom.worker.train.models import MAKERS

STEPS, RATE, CLIP, BATCH = 50, 0.05, 1.0, 16


class Seen:
    """What a model is told of samples."""

    def __init__(self, kind, *shape):
        self.kind, self.shape, self.classes = kind, shape, 12


def made(kind, seed):
    torch.manual_seed(seed)
    if kind == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            vocab_size=12,
            max_position_embeddings=16,
            attn_implementation="sdpa",
        )
        return LlamaForCausalLM(config)
    if kind == "mlp":
        return MAKERS["mlp"](Hyper(hidden=32, layers=4), Seen("features", 20))
    return MAKERS["transformer"](Hyper(width=32, heads=8, layers=2), Seen("tokens", 8))


def batch(kind, step):
    chance = torch.Generator().manual_seed(step)
    if kind == "mlp":
        inputs = torch.randn(BATCH, 20, generator=chance)
        return inputs, inputs[:, :12].argmax(1)
    inputs = torch.randint(12, (BATCH, 9), generator=chance).cumsum(1) % 12
    return inputs[:, :-1], inputs[:, 1:]


def loss_of(outputs, targets):
    outputs = getattr(outputs, "logits", outputs)
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
