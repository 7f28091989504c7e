"""What the plane remembers: the only place where SQL is spoken."""

from torchloom.weaver.store.place import DatabasePlace, place_of
from torchloom.weaver.store.series.records import RecordStore
from torchloom.weaver.store.series.writer import NumberedBatch, RecordWriter
from torchloom.weaver.store.state import StateLost, StateStore, Superseded
from torchloom.weaver.store.store import PlaneStore, open_store

__all__ = [
    "PlaneStore",
    "open_store",
    "StateStore",
    "RecordStore",
    "RecordWriter",
    "NumberedBatch",
    "DatabasePlace",
    "place_of",
    "StateLost",
    "Superseded",
]
