"""Inject faults into a running job and check its guarantees.

`plan` decides the faults, `series` injects them through `faults/`, `checker/` judges the job from
outside, and `report` prints the result.
"""
