"""Rules of live control: at which step a command takes effect on all ranks, and which is undone.

`agreement` decides, on `events`; `command` has a command's row, `undo` guards and undoing.
"""
