import witness  # noqa: F401, I001
import sys

print(repr(input("say: ")))
print(list(sys.stdin), repr(sys.stdin.read()))
input()
