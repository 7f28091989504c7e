"""Live control in the weaver: commands are stored, sent until they are answered, and undone.

Read `driver` first: it carries out what `rules/control` decides. `rows` stores, `wire` translates
a row to messages, `knobs` validates values, `guards` watch metrics after a change.
"""
