"""Components: functions that take arguments and return an AppDef, and the lookup by name.

Read finder.py first: it returns a component by its name.
"""
