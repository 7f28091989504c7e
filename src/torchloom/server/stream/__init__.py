"""Live messages over WebSocket: the hub reads what is new once and sends the same bytes to every
listener.

Read `hub` first; what a page follows is in `topics/`.
"""
