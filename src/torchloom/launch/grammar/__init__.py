"""The command line of `loom launch` and of torchrun: its options, its parser and what a launch
over hosts is planned from.

Words come in; a LaunchCommand and a HostPlan go out. Read command.py first.
"""
