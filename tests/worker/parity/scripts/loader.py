import witness  # noqa: F401, I001
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index**2))


if __name__ == "__main__":
    for start in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=start)
        print([batch.tolist() for batch in loader])
