"""The tables of named resources: sizes of no particular provider, and instance types of EC2.

Start at `named` in the room above: it looks a name up here, in the user's module and in packages.
"""
