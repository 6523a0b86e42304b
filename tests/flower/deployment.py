"""A SuperLink and SuperNodes on loopback, with TLS and node authentication, as docs/flower.md has them."""

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
PATIENCE = 600.0


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def name_of(common):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate(subject, key, issuer, signer, *, authority=False, addresses=()):
    """A certificate for two days, signed by `signer` in the name of `issuer`."""
    today = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name_of(issuer), name_of(subject), key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(today - datetime.timedelta(hours=1)).not_valid_after(
        today + datetime.timedelta(days=2)
    )
    made = made.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    if addresses:
        made = made.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def private_bytes(key, form):
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def certificates(folder):
    """A certificate authority of our own, and the SuperLink's certificate for 127.0.0.1."""
    folder.mkdir(parents=True)
    ours, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    (folder / "ca.crt").write_bytes(certificate("our CA", ours, "our CA", ours, authority=True))
    here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    (folder / "server.pem").write_bytes(certificate("localhost", server, "our CA", ours, addresses=here))
    (folder / "server.key").write_bytes(private_bytes(server, PrivateFormat.PKCS8))


def node_key(path):
    """A SuperNode's key pair, as `ssh-keygen -t ecdsa -b 384` makes it; the public line is returned."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(private_bytes(key, PrivateFormat.OpenSSH))
    path.chmod(0o600)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_suffix(".pub").write_text(f"{line} {path.name}\n")
    return line


class Deployment:
    """Processes of ours, ended when the deployment is closed; `users` has the user id of some of them, by name."""

    def __init__(self, folder: Path, *, programs: Path = BIN, users: Mapping[str, int] | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.programs, self.users = programs, users or {}
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
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name, *words):
        program = [sys.executable, "-m", "sightline"] if words[0] == "sightline" else [str(self.programs / words[0])]
        other = {"user": self.users[name], "group": self.users[name], "extra_groups": []} if name in self.users else {}
        home = self.home_of(name)
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [*program, *map(str, words[1:])],
                cwd=home if other else self.folder,
                env=self.environment | ({"HOME": str(home), "FLWR_HOME": str(home)} if other else {}),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **other,
            )

    def home_of(self, name):
        """The folder of a process; where it has a user of its own, nobody else can look into it."""
        home = self.folder / "homes" / name
        if not home.exists():
            home.mkdir(parents=True)
            if name in self.users:
                home.chmod(0o700)
                os.chown(home, self.users[name], self.users[name])
        return home

    def give(self, name, path, content=None):
        """A file that only one process can read."""
        mine = self.home_of(name) / Path(path).name
        mine.unlink(missing_ok=True)
        mine.write_bytes(Path(path).read_bytes() if content is None else content)
        mine.chmod(0o400)
        if name in self.users:
            os.chown(mine, self.users[name], self.users[name])
        return mine

    def superlink(self):
        """The SuperLink, and the SuperExec that starts apps beside it, as docs/deployment.md has them."""
        keys, secret = self.keys, os.urandom(32)
        self.start(
            "superlink", "flower-superlink", "--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem",
            "--ssl-keyfile", self.give("superlink", keys / "server.key"), "--database", self.home_of("superlink") / "superlink.db",
            "--enable-supernode-auth", "--host", "127.0.0.1", "--port", self.port, "--isolation", "process",
            "--superexec-auth-secret-file", self.give("superlink", "superexec.secret", secret),
        )  # fmt: skip
        self.start(
            "apps", "flower-superexec", "--root-certificates", keys / "ca.crt", "--runtime-api-address", f"127.0.0.1:{self.port}",
            "--superexec-auth-secret-file", self.give("apps", "superexec.secret", secret),
        )  # fmt: skip
        self.wait(lambda: self.flwr("supernode", "list").returncode == 0, "the SuperLink")

    def register(self, name):
        path = self.keys / name
        node_key(path)
        done = self.flwr("supernode", "register", f"{path}.pub", "mine")
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    def supernode(self, name, key, config, *, apps=None):
        """A SuperNode; with `apps` its apps are started by a SuperExec of that name."""
        port, secret, isolation = free_port(), os.urandom(32), []
        if apps:
            isolation = ["--isolation", "process", "--superexec-auth-secret-file"]
            isolation.append(self.give(name, "superexec.secret", secret))
        self.start(
            name, "flower-supernode", "--root-certificates", self.keys / "ca.crt", "--superlink", f"127.0.0.1:{self.port}",
            "--auth-supernode-private-key", self.give(name, key), "--host", "127.0.0.1", "--port", port, "--node-config", config,
            *isolation,
        )  # fmt: skip
        if apps:
            self.start(
                apps, "flower-superexec", "--insecure", "--runtime-api-address", f"127.0.0.1:{port}",
                "--superexec-auth-secret-file", self.give(apps, "superexec.secret", secret),
            )  # fmt: skip

    def write_register(self, keys, sizes):
        """The operator's file: whose key is whose, and how many examples each has."""
        sites = [
            {"client": client, "key": key.with_suffix(".pub").read_text(), "examples": size}
            for client, (key, size) in enumerate(zip(keys, sizes, strict=True))
        ]
        path = self.folder / "register.toml"
        path.write_text(tomli_w.dumps({"site": sites}))
        return path

    def sightline(self, *words):
        line = [sys.executable, "-m", "sightline", *map(str, words)]
        done = subprocess.run(line, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flwr(self, *words):
        line = [str(self.programs / "flwr"), *map(str, words)]
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
