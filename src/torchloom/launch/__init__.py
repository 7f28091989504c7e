"""On a host: the agent that owns an app's processes, what it is asked, records and leaves behind."""
