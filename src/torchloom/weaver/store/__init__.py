"""What the plane remembers: the only place where SQL is spoken."""

from torchloom.weaver.store.place import Place, place_of
from torchloom.weaver.store.records import RecordStore
from torchloom.weaver.store.state import StateLost, StateStore, Superseded
from torchloom.weaver.store.store import Store, open_store
from torchloom.weaver.store.writer import Numbered, RecordWriter

__all__ = [
    "Store",
    "open_store",
    "StateStore",
    "RecordStore",
    "RecordWriter",
    "Numbered",
    "Place",
    "place_of",
    "StateLost",
    "Superseded",
]
