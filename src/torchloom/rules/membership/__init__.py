"""Rules of live recovery: losses come in, the next generation and its messages go out.

Read `live_recovery` first: its `step` handles every event. `losses` has what ends a generation,
`election` the step it continues at, `generation` its record and the orders that are due.
"""
