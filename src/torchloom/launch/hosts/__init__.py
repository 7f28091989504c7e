"""How a launch reaches other hosts: launchers that carry an agent there, launches that meet,
tunnels to the plane, host lists and what is special about a site.

Read carriers.py first.
"""
