"""The bus between ranks, agents and the weaver: encoding, subjects, delivery, and spooling to disk.

`api` is the contract; `memory` and `nats/` fulfil it. `codec` encodes the messages of `messages/`,
`spool/` keeps an agent's records until they are stored, `progress_page` is a rank's shared memory.
"""
