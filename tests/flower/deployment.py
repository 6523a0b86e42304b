"""A SuperLink and SuperNodes on loopback, with TLS and node authentication, as docs/flower.md has them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent
PATIENCE = 600.0


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def openssl(*words, cwd):
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True)


def certificates(folder):
    """A certificate authority of our own, and the SuperLink's certificate for 127.0.0.1."""
    folder.mkdir(parents=True)
    (folder / "san.cnf").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    new = ["req", "-newkey", "rsa:2048", "-nodes"]
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=our CA", "-keyout", "ca.key", "-out", "ca.crt", cwd=folder)
    openssl(*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr", cwd=folder)
    sign = ["x509", "-req", "-days", "2", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl(*sign, "-out", "server.pem", "-extfile", "san.cnf", cwd=folder)


class Deployment:
    """Processes of ours, ended when the deployment is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.keys = folder / "keys"
        certificates(self.keys)
        home = folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / words[0]), *map(str, words[1:])],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def superlink(self):
        keys = self.keys
        self.start(
            "superlink", "flower-superlink", "--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem",
            "--ssl-keyfile", keys / "server.key", "--enable-supernode-auth", "--host", "127.0.0.1", "--port", self.port,
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.wait(lambda: self.flwr("supernode", "list").returncode == 0, "the SuperLink")

    def register(self, name):
        path = self.keys / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", str(path)], check=True
        )
        done = self.flwr("supernode", "register", f"{path}.pub", "mine")
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    def supernode(self, name, key, config):
        self.start(
            name, "flower-supernode", "--root-certificates", self.keys / "ca.crt", "--superlink", f"127.0.0.1:{self.port}",
            "--auth-supernode-private-key", key, "--host", "127.0.0.1", "--port", free_port(), "--node-config", config,
        )  # fmt: skip

    def flwr(self, *words):
        line = [str(BIN / "flwr"), *map(str, words)]
        return subprocess.run(line, cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def wait(self, condition, what, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not come; see {self.folder}"
            time.sleep(1.0)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name):
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self):
        for order in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, order)
            for process in self.processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(15)


def tools_missing():
    return [tool for tool in ("openssl", "ssh-keygen") if shutil.which(tool) is None]
