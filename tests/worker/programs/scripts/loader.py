"""A loop over a DataLoader with accumulation, an evaluation between, and clipped gradients."""

import json
import os
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(80, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
norms = []
for _ in range(int(os.environ.get("EPOCHS", "3"))):
    for at, (inputs, wanted) in enumerate(DataLoader(data, batch_size=10, shuffle=True)):
        functional.mse_loss(model(inputs), wanted).backward()
        if at % 2:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.15)
    with torch.no_grad():
        for inputs, _ in DataLoader(data, batch_size=40):
            model(inputs)
print(json.dumps(norms))
