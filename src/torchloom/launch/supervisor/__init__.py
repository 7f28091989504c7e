"""The launch process of one app: it starts, watches, recovers and ends the app's ranks through the
agents of its nodes.

Messages of agents and of the weaver come in; orders to agents and the run's record go out. Read
service.py first.
"""
