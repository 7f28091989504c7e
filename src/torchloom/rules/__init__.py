"""Decisions as pure functions: `step(state, event) -> (state, effects)`. No I/O, no clock.

Events and the time come in; the next state and what to do go out. Supervisor and weaver carry it
out. Read `lifecycle` for a job's states, `membership/` for live recovery, `control/` for commands.
"""
