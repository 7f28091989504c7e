"""Stand in for a weaver, which answers every question with what it was told, or for another."""

import json
import os
import signal
import sys
from pathlib import Path

from torchloom.client import plane
from torchloom.launch.host import sockets
from torchloom.unix import receive_message, send_message

if sys.argv[1] == "server":
    if os.environ.get("STAND_IN_SERVER_FAILS"):
        sys.exit("the stand-in will not serve")
    card = {"url": f"http://127.0.0.1:{os.getpid()}/", "pid": os.getpid()}
    (plane.folder() / "server.json").write_text(json.dumps(card))
if sys.argv[1] != "weaver":
    signal.pause()
if os.environ.get("STAND_IN_FAILS"):
    sys.exit("the stand-in will not live")

listener = sockets.listen(plane.door())
listener.setblocking(True)
while True:
    channel, _ = listener.accept()
    with channel:
        if (asked := receive_message(channel)) is None:
            continue
        busy = Path(os.environ["LOOM_HOME"], "busy").exists()
        told = {name: os.environ.get(name) for name in ("LOOM_NATS", "LOOM_NATS_CREDS")}
        send_message(channel, {"ok": busy if asked["ask"] == "jobs" else told})
