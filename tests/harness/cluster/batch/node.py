"""The daemon on each host: it runs scripts and tasks of jobs, and signals and ends them."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from .processes import carrying, in_sessions, send_all
from .wire import Address, Message, connect, messages, receive, send

RETRY = 0.05  # seconds between tries to reach the queue's daemon
BEAT = 0.5
DRAIN = 5.0  # seconds for output of tasks that is on its way
CHUNK = 1 << 16
NOT_FOUND = 127  # what a shell exits with


@dataclass
class Work:
    """A job, as one of its hosts knows it."""

    mother: Address
    first: str
    env: dict[str, str]
    cwd: str
    out: str = ""
    err: str = ""
    sessions: set[int] = field(default_factory=set)
    streams: list[threading.Thread] = field(default_factory=list)  # output of tasks elsewhere
    marks: set[str] = field(default_factory=set)
    status: int | None = None  # of the script, when it has ended
    spool: list[str] = field(default_factory=list)  # files that go when the job goes
    scratch: str = ""  # its TMPDIR on this host, removed at the job's end under whatever uses it
    is_ending: bool = False  # it was told to end, and has time for it


class NodeDaemon:
    """One line to the queue's daemon, which is made again when it breaks; a listener for tasks."""

    def __init__(self, name: str, bind: str, settings: dict[str, float]) -> None:
        self._name = name
        self._patience = settings["beat_timeout"]
        self._listener = socket.create_server((bind, 0))
        self._line: socket.socket | None = None
        self._lock = threading.Lock()
        self._works: dict[str, Work] = {}
        self._stdio: dict[str, socket.socket] = {}

    def serve(self, port_file: Path, server: str) -> None:
        """Serve until killed."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        while True:
            with contextlib.suppress(OSError, ValueError):
                self._attend(connect((server, int(port_file.read_text()))))
            time.sleep(RETRY)

    def end_with_owner(self) -> None:
        """End all jobs, and then itself, when the other end of stdin closes."""
        sys.stdin.read()
        for key in list(self._works):
            self.do_clean(key, {"everything": True})
        os._exit(0)

    def _attend(self, line: socket.socket) -> None:
        with line:
            line.settimeout(self._patience)
            port = self._listener.getsockname()[1]
            hello = {"op": "register", "name": self._name, "port": port}
            with self._lock:
                jobs = {key: work.status for key, work in self._works.items()}
                send(line, {**hello, "jobs": jobs})
                self._line = line
            for message in messages(line):
                if message["op"] != "beat":
                    getattr(self, f"do_{message['op']}")(message["job"], message)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT)
            self._tell({"event": "beat"})

    def _tell(self, message: Message) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._line:
                send(self._line, message)

    def do_join(self, key: str, message: Message) -> None:
        """Become one of the hosts of a job."""
        mother: Address = (message["mother"][0], message["mother"][1])
        work = Work(mother, message["first"], message["env"], message["cwd"])
        work.scratch = message["env"].get("TMPDIR", "")
        Path(work.scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._works[key] = work
        self._tell({"event": "joined", "job": key})

    def do_start(self, key: str, message: Message) -> None:
        """Run the job's script."""
        work = self._works[key]
        work.out, work.err = message["out"], message["err"]
        work.marks.add(message["mark"])
        work.spool = message["spool"]
        for path, (text, mode) in message["files"].items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
            Path(path).chmod(mode)
        for path in {work.out, work.err}:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        cwd = next((each for each in message["cwds"] if Path(each).is_dir()), "/")
        given = message.get("stdin") or "/dev/null"
        with open(given) as source, open(work.out, "ab") as out, open(work.err, "ab") as err:
            try:
                script = subprocess.Popen(
                    message["argv"],
                    env=message["env"],
                    cwd=cwd,
                    stdin=source,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                err.write(f"{message['argv'][0]}: {error.strerror}\n".encode())
                work.status = NOT_FOUND
                self._tell({"event": "ended", "job": key, "status": NOT_FOUND})
                return
        work.sessions.add(script.pid)
        threading.Thread(target=self._wait, args=(key, script), daemon=True).start()

    def _wait(self, key: str, script: "subprocess.Popen[bytes]") -> None:
        status = script.wait()
        work = self._works.get(key)
        while work and work.is_ending and in_sessions({script.pid}):
            time.sleep(0.005)  # what it left behind has the time that it had itself
        if work:
            work.status = status
        self._tell({"event": "ended", "job": key, "status": status})

    def do_signal(self, key: str, message: Message) -> None:
        """Send a signal to every process of the job's sessions on this host."""
        if work := self._works.get(key):
            work.is_ending = work.is_ending or message.get("ends", False)
            send_all(in_sessions(work.sessions), message["signal"])

    def do_say(self, key: str, message: Message) -> None:
        """Write something to the job's stderr."""
        if message["text"] and (work := self._works.get(key)):
            with open(work.err, "a") as err:
                err.write(message["text"])

    def do_finish(self, key: str, message: Message) -> None:
        """Bring the output where it belongs."""
        work = self._works.get(key)
        if work is None:  # the host has died and come back meanwhile
            return
        for stream in work.streams:
            stream.join(DRAIN)
        for write in message["writes"]:
            with contextlib.suppress(OSError), open(write["path"], write["mode"]) as target:
                for part in write["parts"]:
                    if "text" in part:
                        target.write(part["text"].encode())
                    else:
                        with open(part["file"], "rb") as source:
                            shutil.copyfileobj(source, target)

    def do_clean(self, key: str, message: Message) -> None:
        """End what is left of the job's sessions on this host, and forget it.

        What made a session of its own is out of sight, as it is where no cgroups are used; only a
        daemon that ends itself takes it along.
        """
        work, everything = self._works.get(key), message.get("everything", False)
        while work and (left := self._left(work, everything)):
            send_all(left, "SIGKILL")
            time.sleep(0.005)
        if work:
            for stream in work.streams:
                stream.join(DRAIN)
            for path in work.spool:
                Path(path).unlink(missing_ok=True)
            shutil.rmtree(work.scratch, ignore_errors=True)
            del self._works[key]
        self._tell({"event": "cleaned", "job": key})

    def _left(self, work: Work, everything: bool) -> set[int]:
        found = in_sessions(work.sessions)
        for mark in work.marks if everything else ():
            found |= carrying(mark)
        return found

    def _listen(self) -> None:
        while True:
            line, _ = self._listener.accept()
            threading.Thread(target=self._serve_line, args=(line,), daemon=True).start()

    def _serve_line(self, line: socket.socket) -> None:
        request = receive(line)
        if request is None:
            return
        if request["op"] == "stdio":  # waits for the task that it belongs to
            self._stdio[request["token"]] = line
            send(line, {"ready": True})
        elif request["op"] == "demux":
            self._gather(line, request)
        elif request["op"] == "task":
            with line:
                self._run_task(line, request)

    def _gather(self, line: socket.socket, request: Message) -> None:
        """Append what a task on another host writes to the job's own output."""
        work = self._works[request["job"]]
        work.streams.append(threading.current_thread())
        send(line, {"ready": True})
        with line, open(work.err if request["stream"] == "err" else work.out, "ab", 0) as file:
            while data := line.recv(CHUNK):
                file.write(data)

    def _run_task(self, line: socket.socket, request: Message) -> None:
        work = self._works.get(request["job"])
        if work is None:
            send(line, {"error": "no such job here"})
            return
        env = dict(work.env if request["env"] is None else request["env"]) | request["extra"]
        try:
            with self._task_files(work, request) as files:
                task = subprocess.Popen(
                    request["argv"],
                    env=env,
                    cwd=request["cwd"] or work.cwd,
                    stdin=files[0],
                    stdout=files[1],
                    stderr=files[2],
                    start_new_session=True,
                )
        except OSError as error:
            send(line, {"error": error.strerror, "code": error.errno})
            return
        work.sessions.add(task.pid)
        send(line, {"started": task.pid})
        if request["tied"]:
            threading.Thread(target=self._follow, args=(line, task), daemon=True).start()
        status = task.wait()
        with contextlib.suppress(OSError):
            send(line, {"exit": status})

    @contextlib.contextmanager
    def _task_files(self, work: Work, request: Message):  # type: ignore[no-untyped-def]
        """Give what a task reads and writes: its client's files, or the job's output."""
        with contextlib.ExitStack() as stack:
            if request["stdio"]:
                lines = [stack.enter_context(self._stdio.pop(t)) for t in request["stdio"]]
                for each in lines:
                    each.settimeout(None)
                yield [each.fileno() for each in lines]
                return
            files: list[int] = [subprocess.DEVNULL]
            for stream in ("out", "err"):
                demux = stack.enter_context(connect(work.mother))
                demux.settimeout(None)
                send(demux, {"op": "demux", "job": request["job"], "stream": stream})
                receive(demux)
                files.append(demux.fileno())
            yield files

    def _follow(self, line: socket.socket, task: "subprocess.Popen[bytes]") -> None:
        """Pass the client's signals on; end the task when the client is gone."""
        for message in messages(line):
            send_all(in_sessions({task.pid}), message["signal"])
        if task.poll() is None:
            send_all(in_sessions({task.pid}), "SIGKILL")


def main(folder: Path, words: list[str]) -> None:
    """Run the daemon of one host of the site that a folder describes."""
    site = json.loads((folder / "site.json").read_text())
    name = words[0]
    daemon = NodeDaemon(name, site["binds"][name], site["settings"])
    if "--owned" in words:
        threading.Thread(target=daemon.end_with_owner, daemon=True).start()
    daemon.serve(folder / "port", site["bind"])
