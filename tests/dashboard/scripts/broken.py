"""A training that fails at once, on every rank in the same way."""


def train() -> None:
    raise RuntimeError("the data is not there")


print("looking for the data", flush=True)
train()
