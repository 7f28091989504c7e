"""What a submitter and the agent it starts say to each other before the app may start."""

from typing import Literal

READY = b"ready\n"  # the agent: the run exists, every verb knows it
TAKEN = b"taken\n"  # instead: another one is the run of this id
GO = b"go\n"  # the submitter: I know it too; without this word the run is unmade

# What the only rank gets as standard input. On a leash it gets nothing, and the app ends with
# whoever holds the other end of the channel.
Input = Literal["nothing", "stdin", "terminal", "leash"]
