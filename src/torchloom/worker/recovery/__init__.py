"""What a rank does when another one dies: leave the group, join the next, take a state, continue.

`recovery` puts the parts in order; `membership` is the protocol with the weaver, `pages` a rank's
private state in shared memory, `leave` and `standin` are about groups, `transfer` moves states.
"""
