"""What is typed into a notebook or `python -i`: numbers without a loop of ours around them."""

import torchloom as loom

run = loom.init(project="cells")

for i in range(50):
    run.log({"loss": 1 / (i + 1)})

for i in range(50):
    run.log({"eval": i * 1.5}, step=i * 10)

for i in reversed(range(50)):
    run.log({"late": i / 2}, step=i)

run.log({"good": 0.25, "huge": 10**30, "beyond": 10**400, "text": "a", "thing": object()}, step=7)
for i in range(5):
    run.log(after=float(i), text="b")
