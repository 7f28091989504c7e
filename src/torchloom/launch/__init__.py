"""On a host: the agent that owns an app's processes, what it is asked and what it writes."""
