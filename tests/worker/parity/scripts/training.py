import witness  # noqa: F401, I001
import tempfile

import torch
from torch import distributed, nn

torch.manual_seed(3)
with tempfile.NamedTemporaryFile() as file:
    store = distributed.FileStore(file.name, 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(64, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss.item():.8f}")
    del model, optimizer
    distributed.destroy_process_group()
big = torch.randn(600, 600)
print((big @ big).sum().item() != 0, torch.initial_seed())
