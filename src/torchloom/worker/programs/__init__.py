"""Adapters for programs that do not use the API: what their loops do, found without their help.

An adapter is installed when the program imports the framework, and reports to `ObservedProgram`:
numbers, config, the program's own steps, how its trainer saves and stops. Read `program` first.
"""
