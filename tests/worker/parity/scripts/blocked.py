import sys

print("up", flush=True)
sys.stdin.readline()
