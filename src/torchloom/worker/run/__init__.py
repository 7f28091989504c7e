"""The run API: a training that can stop at any step and resume with the same state.

`run.py` is what programs call; `resumable.py` holds model, data, RNG and checkpoints behind it.
"""
