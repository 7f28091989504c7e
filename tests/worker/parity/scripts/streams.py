import witness  # noqa: F401, I001
import sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines)
    print(stream.line_buffering, stream.write_through, type(stream.buffer), stream.buffer.mode)
    print(stream.isatty(), stream.seekable(), stream.fileno(), stream.closed, repr(stream))
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print(getattr(sys.stdout.buffer, "raw", sys.stdout.buffer).closefd)
