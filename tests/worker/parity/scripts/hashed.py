import witness  # noqa: F401

print(hash("loom"), hash(b"loom"), {"a", "b", "c", "d"}, hash(1.5))
