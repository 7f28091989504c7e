"""Who may call, how, and how often: the guard before all routes, tokens and sessions, the policy,
limits on strangers.

Read `guard` first.
"""
