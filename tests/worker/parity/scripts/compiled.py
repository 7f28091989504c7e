import witness  # noqa: F401, I001
import torch


@torch.compile(backend="eager")
def double(value):
    return value * 2 + 1


print(double(torch.ones(3)).tolist())
