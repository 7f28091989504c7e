"""The pydantic models of requests and answers; read `common` first.

An answer may have more members than are named here; those that are named are always there.
"""
