"""The messages between ranks, agents, the weaver and launch processes: frozen structs, no I/O.

`base` has what every message begins with, `plane` most of them, `membership` live recovery.
`bus/delivery` encodes them; tags and the order of fields are the wire format.
"""
