"""Be a plane whose weaver, node agent and server are stand-ins."""

import sys
from pathlib import Path

from torchloom.plane.__main__ import main

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
COMMANDS = {name: (sys.executable, STAND_IN, name) for name in ("weaver", "agent", "server")}

sys.exit(main(sys.argv[1:], COMMANDS))
