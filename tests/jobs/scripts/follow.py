"""Follow a job of the plane that this user has chosen; print each message, then how it ended."""

import json
import ssl
import sys
import time
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

login = json.loads(Path.home().joinpath(".torchloom", "login.json").read_text())
trust = ssl.create_default_context(cadata=login["authority"])
url = f"{login['url'].replace('http', 'ws', 1)}/api/jobs/{sys.argv[1]}/stream?after=start"
headers = {"Authorization": f"Bearer {login['token']}"}
with connect(url, ssl=trust, additional_headers=headers, proxy=None) as socket:
    try:
        for message in socket:
            print(message, flush=True)
    except ConnectionClosed:
        pass
    said = {"type": "closed", "code": socket.close_code, "at": time.monotonic()}
    print(json.dumps(said), flush=True)
