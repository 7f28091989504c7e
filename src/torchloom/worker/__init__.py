"""Code inside every rank, and other processes that need torch.

`run/` is the API of training programs, `threadlet/` the link to the agent, `dist/` the set-up of
torch.distributed, `saving/` checkpoints, `recovery/` live recovery, `process/` how ranks start.
"""
