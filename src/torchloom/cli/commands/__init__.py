"""One module a verb, `cmd_VERB`, imported when used; each has a click command called `command`."""
