"""The job agent: one process per job and node, which has the keeper start the job's ranks there
and keeps their logs.

Orders of the supervisor come in; reports of starts, outputs and exits go out. Read service.py
first.
"""
