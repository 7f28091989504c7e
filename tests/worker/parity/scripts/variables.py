import witness  # noqa: F401, I001
import os
import subprocess

OURS = ("WITNESS", "_")
mine = {name: value for name, value in os.environ.items() if name not in OURS}
print(mine, list(mine) == sorted(mine), len(os.environb))
child = subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()
print(sorted(line for line in child if not line.startswith(("WITNESS=", "_="))))
print(subprocess.run(["sh", "-c", "echo to the same place; exit 4"]).returncode)
