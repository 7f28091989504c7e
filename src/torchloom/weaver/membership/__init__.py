"""Live recovery in the weaver: a rank dies, the others stay up, a newcomer joins them.

Reports of ranks and launch processes come in (`live_recovery`), `rules/membership` decides, and
`effects` stores the outcome and sends messages. `attempt` is one attempt of a job.
"""
