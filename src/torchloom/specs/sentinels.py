"""The values that stand for "not said", so that plain strings can be fields."""

ALL = "all"  # every scheduler
MISSING = "<MISSING>"  # has to be set before the app can run
NONE = "<NONE>"  # optional and not set
UNKNOWN = "<UNKNOWN>"  # was set, but the reader cannot tell to what
