"""Components: functions that take arguments and return an AppDef, and how they are found.

Read finder.py first: it returns a component by its name.
"""
