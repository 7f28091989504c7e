"""The keeper: the single-threaded parent of a job's ranks on one host, a fork of a zygote or a
process of its own.

Orders of the job agent come in; started processes and their exit codes go out. Read service.py
first; everything here runs in the user's interpreter and imports the standard library only.
"""
