"""Training loops of the usual kinds; each writes the losses that it computes itself."""

import json
import os

import torch
from torch import nn
from torch.nn import functional

KIND = os.environ["KIND"]
STEPS = 3
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
file = open(os.environ["OUT"], "a")  # noqa: SIM115


def note(loss, name="loss"):
    """Write what this step's loss is, by the loop's own word."""
    file.write(json.dumps([name, float(loss)]) + "\n")
    file.flush()


def mse(part=slice(None)):
    return functional.mse_loss(model(x[part]), y[part])


def quarter(at):
    return slice(at * 16, at * 16 + 16)


def step(*optimizers):
    for one in optimizers or (optimizer,):
        one.step()
    for one in optimizers or (optimizer,):
        one.zero_grad()


match KIND:
    case "plain":
        for _ in range(STEPS):
            loss = mse()
            loss.backward()
            step()
            note(loss)
    case "accumulation":
        for _ in range(STEPS):
            total = 0.0
            for at in range(4):
                loss = mse(quarter(at)) / 4
                loss.backward()
                total += loss.item()
            step()
            note(total)
    case "scaler":
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for at in range(5):
            loss = mse()
            scaler.scale(loss).backward()
            if at == 2:
                next(model.parameters()).grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if at != 2:
                note(loss)
    case "gan":
        generator = nn.Linear(8, 8)
        second = torch.optim.Adam(generator.parameters())
        bce = functional.binary_cross_entropy_with_logits
        for _ in range(2):
            real = bce(model(x), torch.ones(64, 1))
            real.backward()
            fake = generator(torch.randn(64, 8))
            false = bce(model(fake.detach()), torch.zeros(64, 1))
            false.backward()
            step()
            note(real.item() + false.item())
            fooled = bce(model(fake), torch.ones(64, 1))
            fooled.backward()
            step(second)
            note(fooled, "opt2.loss")
    case "two optimizers":
        second = torch.optim.Adam(model[2].parameters())
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.01)
        for _ in range(2):
            loss = mse()
            loss.backward()
            step(optimizer, second)
            note(loss)
    case "gradient penalty":
        for _ in range(2):
            inputs = x.clone().requires_grad_()
            out = model(inputs)
            slope = torch.autograd.grad(out.sum(), inputs, create_graph=True)[0]
            loss = functional.mse_loss(out, y) + slope.pow(2).mean()
            loss.backward()
            step()
            note(loss)
    case "two losses":
        for _ in range(2):
            out = model(x)
            first, second = functional.mse_loss(out, y), functional.l1_loss(out, y)
            first.backward(retain_graph=True)
            second.backward()
            step()
            note(first.item() + second.item())
    case "list of losses":
        for _ in range(2):
            out = model(x)
            losses = [functional.mse_loss(out, y), functional.l1_loss(out, y)]
            torch.autograd.backward(losses)
            step()
            note(sum(losses))
    case "no scalar":
        out = model(x)
        out.backward(torch.ones_like(out))
        step()
    case "one element":
        loss = mse().reshape(1)
        loss.backward()
        step()
        note(loss)
    case "recomputed":
        from torch.utils.checkpoint import checkpoint

        inputs = x.clone().requires_grad_()
        loss = functional.mse_loss(checkpoint(model, inputs, use_reentrant=True), y)
        loss.backward()
        step()
        note(loss)
    case "closure":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = mse()
            loss.backward()
            return loss

        for _ in range(2):
            note(optimizer.step(closure))
    case "accumulated closure":
        first = []

        def trained():
            loss = mse(quarter(1)) / 2
            loss.backward()
            first.append(loss.item())
            return loss

        for _ in range(STEPS):
            loss = mse(quarter(0)) / 2
            loss.backward()
            optimizer.step(trained)
            optimizer.zero_grad()
            note(loss.item() + first.pop())
    case "not a number":
        for factor in (1.0, float("nan")):
            loss = mse() * factor
            loss.backward()
            step()
            note(loss)
    case "compiled":
        compiled = torch.compile(model, backend="eager")

        @torch.compile(backend="eager")
        def trained(inputs, wanted):
            loss = functional.mse_loss(compiled(inputs), wanted)
            loss.backward()
            step()
            return loss

        for _ in range(STEPS):
            note(trained(x, y))
    case "evaluation between":
        for _ in range(STEPS):
            with torch.no_grad():
                mse()
            loss = mse()
            loss.backward()
            step()
            note(loss)
            with torch.no_grad():
                mse()
    case "own numbers":
        import torchloom as loom

        run = loom.init()
        for _ in range(STEPS):
            run.log(loss=7.0)
            mse().backward()
            step()
            note(7.0)
