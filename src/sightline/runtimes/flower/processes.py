"""The processes of a server and of a site: their command lines and users, and a supervisor that starts them."""

import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

from sightline.errors import SightlineError, invalid
from sightline.runtimes.flower.federation import (
    CA,
    CA_KEY,
    NODE_KEY,
    SECRET,
    NodeFile,
    ServerFile,
    check_secret,
    fingerprint_key,
    make_folder,
    read_sites,
    split_address,
    user_id,
    write_public,
)

LOG_BYTES, LOG_FILES = 10 * 1024 * 1024, 5
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 30.0
TELL_SECONDS = 10.0
END_SECONDS = 15.0
SUPERLINK = "sightline"
"""The name of the server in the configuration of `flwr`."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Program:
    """One process: its command line, its user, and the folder that is its home."""

    name: str
    line: Sequence[object]
    home: Path
    user: str | None = None
    group_of: str | None = None
    """The user whose group it has, if not its own."""
    again: str = ""
    """Why it may end and is then started again; an end of the others ends all."""


def find_program(name: str) -> str:
    """Return the path of a program of Flower, which is beside this interpreter or on the path."""
    result = shutil.which(name, path=_search_path())
    if result is None:
        invalid("program", name, "is not installed", 'pip install "sightline[flower]"')
    return result


def _search_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def server_programs(folder: Path, server: ServerFile, health_port: int) -> list[Program]:
    """Return the processes of a server; raise InvalidInput if a secret is open to others or its port is in use."""
    link, apps = server.users or (None, None)
    folder = folder.resolve()
    own, theirs, ca = folder / "superlink", folder / "apps", folder / CA
    for path, user in (
        (folder / CA_KEY, None),
        (own / "server.key", link),
        (own / SECRET, link),
        (theirs / SECRET, apps),
    ):
        check_secret(path, user)
    refuse_port_in_use("address", server.listen, server.port, "end the process that listens there")
    superlink = [
        find_program("flower-superlink"), "--ssl-ca-certfile", ca, "--ssl-certfile", own / "server.pem",
        "--ssl-keyfile", own / "server.key", "--database", own / "superlink.db", "--enable-supernode-auth",
        "--host", server.listen, "--port", server.port, "--isolation", "process",
        "--superexec-auth-secret-file", own / SECRET, "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    superexec = [
        find_program("flower-superexec"), "--root-certificates", ca, "--runtime-api-address", server.here,
        "--superexec-auth-secret-file", theirs / SECRET,
    ]  # fmt: skip
    monitor = [sys.executable, "-m", "sightline", "server", "monitor", folder, "--health-port", health_port]
    return [
        Program("superlink", superlink, own, link),
        Program("apps", superexec, theirs, apps),
        # As the user of the apps: it reads what they wrote, and nothing that root would have to trust.
        Program("monitor", monitor, theirs, apps),
    ]


def site_programs(folder: Path, node: NodeFile, health_port: int) -> list[Program]:
    """Return the processes of a site that has joined a server; raise InvalidInput if a secret is open to others."""
    if not node.server:
        invalid("FOLDER", folder, "this site has not joined a server", "sightline site join FOLDER INVITATION")
    site, carrier, apps = node.users or (None, None, None)
    folder = folder.resolve()
    own, theirs, meeting = folder / "node", folder / "apps", folder / "socket" / "site.socket"
    for path, user in ((own / NODE_KEY, carrier), (own / SECRET, carrier), (theirs / SECRET, apps)):
        check_secret(path, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = [sys.executable, "-m", "sightline", "site", "serve", folder / "site", "--socket", meeting, "--log", "json",
             "--health-port", health_port]  # fmt: skip
    supernode = [
        find_program("flower-supernode"), "--root-certificates", folder / CA, "--superlink", node.server,
        "--auth-supernode-private-key", own / NODE_KEY, "--host", "127.0.0.1", "--port", port,
        "--node-config", f"site-socket={json.dumps(str(meeting))}", "--isolation", "process",
        "--superexec-auth-secret-file", own / SECRET,
    ]  # fmt: skip
    superexec = [
        find_program("flower-superexec"), "--insecure", "--runtime-api-address", f"127.0.0.1:{port}",
        "--superexec-auth-secret-file", theirs / SECRET,
    ]  # fmt: skip
    return [
        Program("site", serve, folder / "site", site),
        Program("node", supernode, own, carrier, again="does the server know its key?"),
        Program("apps", superexec, theirs, apps, group_of=site, again="its node has ended"),
    ]


def refuse_port_in_use(option: str, host: str, port: int, way_out: str) -> None:
    """Raise InvalidInput if this process cannot listen at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            invalid(option, f"{host}:{port}", f"cannot listen there ({error.strerror})", way_out)


def environment_of(program: Program) -> dict[str, str]:
    """Return the environment of a process: its own home, no telemetry, and no proxy for this machine."""
    local = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    local = ",".join(filter(None, [local, "127.0.0.1", "localhost"]))
    own = {"HOME": str(program.home), "FLWR_HOME": str(program.home), "PATH": _search_path()}
    own |= {"NO_PROXY": local, "no_proxy": local, "PYTHONUNBUFFERED": "1"}
    return (
        {"OMP_NUM_THREADS": "1"} | os.environ | own | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    )


class Supervisor:
    """Starts processes, each as its user, writes their logs to a folder, and ends them together.

    Guarantees: every process is ended before `run` returns; a process that ends by itself ends all others, unless it
    is one that is started again.
    """

    def __init__(self, programs: Sequence[Program], folder: Path, say: Say) -> None:
        self._programs, self._say = programs, say
        self._logs = make_folder(folder.resolve() / "logs", None)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._pause: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._last_line: dict[str, str] = {}

    def run(self, meanwhile: Callable[[], None]) -> None:
        """Start all processes, then call `meanwhile` again and again; raise SightlineError if one of them ends."""
        self._say(f"starting {', '.join(program.name for program in self._programs)}; logs in {self._logs}")
        if not any(program.user for program in self._programs):
            self._say("one user runs all processes, so an app could read this folder: run as root to separate them")
        # systemd ends a service with SIGTERM: end the processes then, as with Ctrl-C.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        try:
            for program in self._programs:
                self._start(program)
            while True:
                self._look_after()
                meanwhile()
                time.sleep(0.5)
        finally:
            self._stop()

    def _start(self, program: Program) -> None:
        users: dict[str, Any] = {}
        if program.user is not None:
            group = user_id(program.group_of or program.user)[1]
            users = {"user": user_id(program.user)[0], "group": group, "extra_groups": []}
        try:
            process = subprocess.Popen(
                [str(word) for word in program.line], cwd=program.home, env=environment_of(program), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                start_new_session=True, umask=0o077, **users,
            )  # fmt: skip
        except PermissionError:
            way_out = f"install Sightline where every user can read it, not at {sys.executable}"
            invalid("process", program.name, f"its user {program.user} cannot start it", way_out)
        self._processes[program.name] = process
        threading.Thread(target=self._copy_output, args=(program.name, process.stdout), daemon=True).start()

    def _copy_output(self, name: str, lines: IO[str]) -> None:
        """Copy the output of a process to its log, and tell the administrator the events in it."""
        path = self._logs / f"{name}.log"
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
        with lines:
            for line in lines:
                text = line.rstrip("\n")
                self._last_line[name] = text if text.strip() else self._last_line.get(name, "")
                handler.emit(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))
                if '"event"' in text:
                    with suppress(ValueError, KeyError, TypeError):
                        self._say(str(json.loads(text)["message"]))
        handler.close()

    def _look_after(self) -> None:
        for program in self._programs:
            process = self._processes.get(program.name)
            if process is None:
                if time.monotonic() >= self._due[program.name]:
                    self._start(program)
            elif process.poll() is not None:
                self._end(program, process.returncode)

    def _end(self, program: Program, code: int) -> None:
        name, said = program.name, f"{program.name} ended with code {code}"
        if not program.again:
            # Its last words are still on their way through the pipe.
            time.sleep(0.2)
            raise SightlineError(f"{said}: {self._last_line.get(name, '')[-300:]}; see {self._logs / name}.log")
        del self._processes[name]
        pause = self._pause[name] = min(2 * self._pause.get(name, PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        self._due[name] = time.monotonic() + pause
        self._say(f"{said} ({program.again}); it is started again in {pause:.0f} s")

    def _stop(self) -> None:
        """End all processes, with those that they started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + END_SECONDS
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))


class Operator:
    """The operator's `flwr` commands: registers the nodes' keys and starts runs."""

    def __init__(self, folder: Path, server: ServerFile, say: Say) -> None:
        self._folder, self._server, self._say = folder.resolve(), server, say
        self._known: set[str] = set()
        home = make_folder(self._folder / "operator", None)
        plain = f'[superlink.{SUPERLINK}]\naddress = "{server.here}"\nroot-certificates = "{self._folder / CA}"\n'
        write_public(home / "config.toml", f'[superlink]\ndefault = "{SUPERLINK}"\n\n{plain}')
        self._program = Program("flwr", [find_program("flwr")], home)

    def is_up(self) -> bool:
        """Return whether the server listens; raise InvalidInput if it has another certificate."""
        return check_server(self._server.here, self._folder / CA)

    def _flwr(self, *words: object) -> "subprocess.Popen[str]":
        line = [str(word) for word in (*self._program.line, *words)]
        return subprocess.Popen(line, cwd=self._program.home, env=environment_of(self._program), text=True,
                                errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def register_keys(self) -> None:
        """Register the key of every invited site with a server that is up, once."""
        for site in read_sites(self._folder):
            if site.key in self._known or not self.is_up():
                continue
            public = self._folder / "operator" / "node.pub"
            write_public(public, site.key + "\n")
            process = self._flwr("supernode", "register", public, SUPERLINK)
            output = " ".join(process.communicate()[0].split())
            if process.returncode and "already" not in output:
                raise SightlineError(f"site={site.name}: its key could not be registered ({output[-300:]})")
            self._known.add(site.key)
            self._say(f"registered {site.name}: {fingerprint_key(site.key)}")

    def start_run(self, app: Path, config: Path, line_said: Say) -> None:
        """Send an app to the server and pass on what it says until the run is over."""
        process = self._flwr("run", app, SUPERLINK, "--stream", "--run-config", config)
        try:
            for line in process.stdout or ():
                line_said(line.rstrip("\n"))
        finally:
            process.kill()
            process.wait()


class WaitingForServer:
    """Tells a site's administrator that the server is not there yet, and when it is.

    Guarantees: a server with a certificate of another authority than the invitation's ends the site.
    """

    def __init__(self, address: str, authority: Path, say: Say) -> None:
        self._address, self._authority, self._say, self._begun = address, authority, say, time.monotonic()
        self._told, self._up = -TELL_SECONDS, False

    def __call__(self) -> None:
        """Look whether the server is there, until it is."""
        if self._up:
            return
        waited = time.monotonic() - self._begun
        self._up = check_server(self._address, self._authority)
        if self._up:
            self._say(f"the server at {self._address} is there")
        elif waited - self._told >= TELL_SECONDS:
            self._told = waited
            self._say(f"waiting for the server at {self._address} ({waited:.0f} s)")


def check_server(address: str, authority: Path) -> bool:
    """Return whether the server of an invitation listens; raise InvalidInput if another one does."""
    host, port = split_address(address)
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with socket.create_connection((host, port), timeout=1.0) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        reason = f"its certificate is not that of the invited server ({error.verify_message})"
        invalid("server", address, reason, "ask the operator; join again only with a new invitation")
    except OSError:
        return False
    return True
