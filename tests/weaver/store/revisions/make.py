"""Make the databases of an older commit by its own code; see README.md beside this file.

`python make.py COMMIT`: the commit's sources and tests are unpacked to a temporary folder, its
weaver is run there with a job that has ended and one that has not, and both databases are written
here as SQL. `python make.py COMMIT REVISION FILE`: the commit's migrations carry the database in a
file of this folder up to a revision and no further.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = """
import asyncio, sys, time
from pathlib import Path
try:
    from tests.harness.fake_agents import crowd, job_event, register, weaver_at
except ImportError:  # older commits
    from tests.weaver.fakes import crowd, job_event, register, weaver_at
from torchloom.bus.memory import Exchange
from torchloom.messages.plane import Event, Metrics
from torchloom.weaver.api.router import Router as Answering

async def main(folder):
    exchange = Exchange()
    async with weaver_at(folder, exchange) as weaver:
        answering = Answering(weaver)
        agent, ranks = await crowd(exchange, 2)
        other = agent.rank(register(0, job="job-2", devices=("node1/cpu/9",)))
        facts = {"scheduler": "local", "owner": "ada"}
        await agent.act(job_event("job", name="gpt", handle="local://x/job-1", **facts))
        await agent.act(job_event("job", "job-2", name="bert", handle="local://x/job-2", **facts))
        await agent.hello()
        for rank in (*ranks, other):
            rows = tuple((step, 1.8e9 + step, 1.0 / step, step / 10) for step in range(1, 21))
            metrics = Metrics(rank.head, ("loss", "lr"), rows)
            said = Event(rank.head, "note", 20, time.time(), {"text": "kept"})
            await agent.send(rank.head, 1, metrics, said)
            await agent.stored(rank.head, 2)
        asked = {"ask": "set", "version": 1, "job": "job-1", "values": {"lr": 0.25}}
        answer = await answering.answer({**asked, "author": "ada", "wait": 20, "reason": "a try"})
        assert answer.get("ok", {}).get("state") == "applied", answer
        await agent.act(job_event("job_ended", state="COMPLETED", reason="ranks_ended"))
        seen = {"ask": "job", "version": 1, "job": "job-1"}
        while (await answering.answer(seen))["ok"]["state"] != "COMPLETED":
            await asyncio.sleep(0.01)

asyncio.run(main(Path(sys.argv[1])))
"""
PARTLY = """
import sqlite3, sys
from pathlib import Path
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
import torchloom.weaver.store.migrations as migrations

folder, part, revision, text = sys.argv[1:]
Path(folder).mkdir()
connection = sqlite3.connect(f"{folder}/{part}.db")
connection.executescript(Path(text).read_text())
connection.close()
config, own = Config(), Path(migrations.__file__).parent
config.set_main_option("script_location", str(own))
config.set_main_option("version_locations", str(own / part))
config.set_main_option("path_separator", "newline")
with sa.create_engine(f"sqlite:///{folder}/{part}.db").begin() as connection:
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
"""
DUMP = """
import sqlite3, sys
for part in sys.argv[4:] or ("state", "records"):
    connection = sqlite3.connect(f"{sys.argv[1]}/{part}.db")
    text = "\\n".join(connection.iterdump()) + "\\n"
    version, = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    open(f"{sys.argv[2]}/{version}-{sys.argv[3]}.sql", "w").write(text)
    print(version, len(text))
"""


def main(commit: str, revision: str = "", before: str = "") -> None:
    with tempfile.TemporaryDirectory() as name:
        tree, made = Path(name, "tree"), Path(name, "plane")
        tree.mkdir()
        packed = subprocess.run(["git", "archive", commit, "src", "tests"], stdout=-1, check=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
        env = {"PYTHONPATH": f"{tree}/src:{tree}", "LOOM_HOME": name, "PATH": "/usr/bin:/bin"}
        env |= {"HOME": name, "XDG_RUNTIME_DIR": name}
        run = [sys.executable, "-P", "-c"]
        parts = [revision.partition("_")[0]] if revision else []
        words = [PARTLY, str(made), *parts, revision, str(HERE / before)] if parts else None
        subprocess.run([*run, *(words or [PROGRAM, str(made)])], check=True, env=env, cwd=name)
        subprocess.run([*run, DUMP, str(made), str(HERE), commit, *parts], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
