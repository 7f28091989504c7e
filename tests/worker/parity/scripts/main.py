import witness  # noqa: F401, I001
import sys

print([name for name in globals() if name not in ("witness", "sys")])
print(__name__, __file__, __spec__, __package__, __doc__, __cached__, __annotations__)
print(type(__loader__), __loader__.name, __loader__.path, __builtins__)
print(sys.modules["__main__"].__dict__ is globals())
