"""Parameter servers: processes that hold the parameters of a training, and workers that use them.

Workers push gradients and pull parameters; each server has a share of both, and the optimizer's
state of its share. Read `server` first; `remote_optimizer` is the workers' side, and `frames` what
travels between them.
"""
