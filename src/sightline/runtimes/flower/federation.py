"""Provisioning of a server and its sites: folders, users, keys, certificates, requests of sites and invitations."""

import base64
import datetime
import hashlib
import ipaddress
import json
import os
import pwd
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import Field, ValidationError

from sightline.config import Experiment, parse
from sightline.config.section import Section
from sightline.errors import invalid
from sightline.randomness import write_secret

LARGEST_FILE = 1 << 24
MOST_CLIENT, MOST_EXAMPLES = 10**6, 10**8
REGISTER, EXPERIMENT, INVITATION, REQUEST = "register.toml", "experiment.toml", "invitation.toml", "request.toml"
SERVER, CA, CA_KEY = "server.toml", "ca.crt", "ca.key"
SECRET, NODE_KEY = "superexec.secret", "node.key"
SERVER_USERS = ("sightline-server", "sightline-apps")
SITE_USERS = ("sightline-site", "sightline-node", "sightline-node-apps")
CERTIFICATE_DAYS = 3650
LONGEST_SOCKET = 100
"""A Unix socket's path has at most about 107 bytes."""
SectionT = TypeVar("SectionT", bound=Section)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class SiteRequest(Section):
    """What a site sends to the operator: its name, the public key of its node and its size. It holds no secret."""

    name: Name
    key: str
    """The node's public key: the line of its .pub file, as `ssh-keygen -t ecdsa` writes it."""
    examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]
    classes: Annotated[int, Field(ge=2)] | None = None
    class_names: list[Annotated[str, Field(max_length=80)]] | None = None
    """The labels in their order, if they are text."""


class Invitation(Section):
    """What the operator sends to every site: where the server is, how to recognise it, and the experiment.

    It holds no secret. Sites are listed by the fingerprints of their keys: names and sizes are for the operator only.
    """

    server: str
    expires: datetime.datetime
    """After this a site does not join: an old invitation may name a server that has changed hands."""
    certificate: str
    """The certificate of the federation's authority, PEM: the server's own certificate must be signed by it."""
    experiment: str
    """The resolved TOML."""
    sites: dict[str, Annotated[int, Field(ge=0, le=MOST_CLIENT)]]
    """Fingerprint of a node's key -> client number."""


class ServerFile(Section):
    """`server.toml`: where the server is reached, where it listens, and as which users its processes run."""

    address: str
    listen: str
    users: list[str] = Field(default_factory=list)

    @property
    def port(self) -> int:
        """Return the port of the address."""
        return split_address(self.address)[1]

    @property
    def here(self) -> str:
        """Return the address by which this machine reaches the server."""
        host = "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class NodeFile(Section):
    """`node.toml`: as which users a site's processes run and, once it has joined, where the server is."""

    name: Name
    server: str = ""
    users: list[str] = Field(default_factory=list)


def read_section(path: Path, kind: type[SectionT], option: str) -> SectionT:
    """Return a TOML file of ours; raise InvalidInput with one line for anything else."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE).decode()
        return kind.model_validate(tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        invalid(option, path, f"cannot be read ({type(error).__name__})")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        invalid(f"{option}: {'.'.join(str(part) for part in first['loc'])}", first["input"], first["msg"])


def write_public(path: Path, content: str | bytes) -> None:
    """Write a file that holds no secret, whole or not at all; others may read it."""
    write_secret(path, content.encode() if isinstance(content, str) else content)
    path.chmod(0o644)


def dump(section: Section, head: str = "") -> str:
    """Return a section as TOML under a comment."""
    return head + tomli_w.dumps(section.model_dump(exclude_none=True), multiline_strings=True)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port; raise InvalidInput for anything but `host:port`.

    >>> split_address("link.example.org:8000"), split_address("[::1]:8000")
    (('link.example.org', 8000), ('::1', 8000))
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        invalid("address", address, "is not HOST:PORT", "e.g. link.example.org:8000")
    return match[1] or match[2], int(match[3])


def _as_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# users and folders


def find_users(names: str | None, default: Sequence[str]) -> list[str]:
    """Return the users of a party's processes, one for each; [] if all run as the current user.

    Root gets separate users, made if they are missing, unless `names` says otherwise; other users cannot change user.
    """
    given = ",".join(default) if names is None and os.geteuid() == 0 else names or ""
    wanted = [name for name in given.split(",") if name]
    if wanted and os.geteuid() != 0:
        invalid("--users", names, "only root can start processes of other users", "run as root, or leave it out")
    if wanted and (len(wanted) != len(default) or len({user_id(name, _make_user) for name in wanted}) != len(wanted)):
        invalid("--users", names, f"{len(default)} different users are needed", f"e.g. {','.join(default)}")
    return wanted


def _make_user(name: str) -> None:
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        invalid("--users", name, "there is no such user, and no useradd to make it", "make it, or name others")
    line = [program, "--system", "--no-create-home", "--user-group", "--shell", "/usr/sbin/nologin", name]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        invalid("--users", name, f"useradd could not make it ({' '.join(done.stderr.split())})", "make it by hand")


def user_id(name: str, make: Callable[[str], None] | None = None) -> tuple[int, int]:
    """Return the ids of a user and its group; a number stands for a user of that id and a group of the same."""
    if name.isdecimal():
        return int(name), int(name)
    try:
        known = pwd.getpwnam(name)
    except KeyError:
        if make is None:
            invalid("users", name, "there is no such user", "make it, or run init again")
        make(name)
        return user_id(name)
    return known.pw_uid, known.pw_gid


def make_folder(path: Path, user: str | None, mode: int = 0o700) -> Path:
    """Make a folder that belongs to a user."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    path.chmod(mode)
    give(path, user)
    return path


def give(path: Path, user: str | None) -> None:
    """Make a user the owner of a file; None is the current user."""
    if user is not None:
        os.chown(path, *user_id(user))


def write_for(path: Path, content: bytes, user: str | None) -> None:
    """Write a secret that only one user can read."""
    write_secret(path, content)
    give(path, user)


def check_secret(path: Path, user: str | None) -> None:
    """Raise InvalidInput if a secret is missing, or another user than its own could read or write it."""
    try:
        known = path.stat()
    except OSError as error:
        invalid("secret", path, f"cannot be read ({type(error).__name__})", "restore it, or make the folder again")
    owner = os.geteuid() if user is None else user_id(user)[0]
    if known.st_uid != owner or known.st_mode & 0o077:
        reason = f"has mode {known.st_mode & 0o777:o} and owner {known.st_uid}: others could have read or changed it"
        invalid("secret", path, reason, f"make the folder again if they did, else: chown {owner} and chmod 600")


def _new_folder(folder: Path, users: Sequence[str]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        invalid("FOLDER", folder, "exists and is not empty", "choose another")
    # With separate users the folder itself must be passable; what is in it is closed to others where it must be.
    make_folder(folder, None, 0o755 if users else 0o700)


# keys


def fingerprint_key(line: str) -> str:
    """Return the fingerprint of an OpenSSH public key, as `ssh-keygen -l` prints it."""
    read_public_key(line, "key")
    blob = base64.b64decode(line.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def fingerprint_file(content: bytes) -> str:
    """Return the SHA-256 of a file in groups of four digits: what `sha256sum` prints, easier to read aloud."""
    digest = hashlib.sha256(content).hexdigest()
    return " ".join(digest[start : start + 4] for start in range(0, 64, 4))


def read_public_key(line: str, option: str, whose: str = "it") -> bytes:
    """Return an OpenSSH public key in the form in which Flower reports the keys of nodes."""
    try:
        key = serialization.load_ssh_public_key(line.strip().encode())
        return bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    except (ValueError, UnsupportedAlgorithm):
        invalid(option, line[:60], f"{whose} is not an OpenSSH public key", "paste the line of its .pub file")


def make_node_key(name: str) -> tuple[bytes, str]:
    """Return a SuperNode's private key and its public line, as `ssh-keygen -t ecdsa -b 384` makes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return _private_bytes(key, serialization.PrivateFormat.OpenSSH), f"{line.decode()} {name}"


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def make_authority() -> tuple[bytes, bytes]:
    """Return the private key and the certificate of a new certificate authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    name = _common_name(f"Sightline federation {os.urandom(4).hex()}")
    built = _certificate(name, name, key.public_key(), key.public_key(), authority=True)
    made = built.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    return _private_bytes(key, serialization.PrivateFormat.PKCS8), made.public_bytes(serialization.Encoding.PEM)


def make_certificate(ca_key: bytes, ca: bytes, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a new private key and a certificate for hosts, signed by the authority."""
    signer: Any = serialization.load_pem_private_key(ca_key, password=None)
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.load_pem_x509_certificate(ca).subject
    names = [
        x509.DNSName(host) if _as_ip(host) is None else x509.IPAddress(ipaddress.ip_address(host)) for host in hosts
    ]
    built = _certificate(_common_name(hosts[0]), issuer, key.public_key(), signer.public_key(), authority=False)
    built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    made = built.sign(signer, hashes.SHA256())
    return _private_bytes(key, serialization.PrivateFormat.PKCS8), made.public_bytes(serialization.Encoding.PEM)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Any, signer: Any, *, authority: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    # An hour back: the clocks of two machines may differ a little.
    built = built.not_valid_before(now - datetime.timedelta(hours=1))
    built = built.not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
    built = built.add_extension(
        x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True
    )
    built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return built.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)


def check_certificate(pem: bytes, option: str) -> x509.Certificate:
    """Return a certificate that is valid now; raise InvalidInput otherwise."""
    try:
        (result,) = x509.load_pem_x509_certificates(pem)
    except ValueError:
        invalid(option, "certificate", "is not one PEM certificate", "ask the operator for the invitation again")
    now = datetime.datetime.now(datetime.UTC)
    if not result.not_valid_before_utc <= now <= result.not_valid_after_utc:
        span = f"{result.not_valid_before_utc:%Y-%m-%d} to {result.not_valid_after_utc:%Y-%m-%d}"
        invalid(option, "certificate", f"is valid from {span}, and this clock says {now:%Y-%m-%d %H:%M} UTC",
                "set the clock, or ask the operator for a new one")  # fmt: skip
    return result


# the server


def init_server(folder: Path, address: str, listen: str | None, users: Sequence[str]) -> ServerFile:
    """Make the folder of a server: its authority, its certificate, and a folder for the user of each process."""
    host, _ = split_address(address)
    listen = _listen_address(host) if listen is None else listen
    if _as_ip(listen) is None:
        invalid("--listen", listen, "is not an IP address of this machine", "e.g. 127.0.0.1")
    server = ServerFile(address=address, listen=listen, users=list(users))
    _new_folder(folder, users)
    link, apps = users or (None, None)
    ca_key, ca = make_authority()
    write_secret(folder / CA_KEY, ca_key)
    write_public(folder / CA, ca)
    make_folder(folder / "superlink", link)
    hosts = dict.fromkeys([host, listen, "localhost", "127.0.0.1"])
    key, certificate = make_certificate(ca_key, ca, [name for name in hosts if name not in ("0.0.0.0", "::")])
    write_for(folder / "superlink" / "server.key", key, link)
    write_for(folder / "superlink" / "server.pem", certificate, link)
    secret = os.urandom(32)
    write_for(folder / "superlink" / SECRET, secret, link)
    write_for(make_folder(folder / "apps", apps) / SECRET, secret, apps)
    make_folder(folder / "apps" / "runs", apps)
    # Written last: a folder with this file is complete.
    write_public(folder / SERVER, dump(server))
    return server


def _listen_address(host: str) -> str:
    ip = _as_ip(host)
    if ip is None and host != "localhost":
        reason = "a host name does not say at which address to listen"
        invalid("--address", host, reason, "give --listen IP, the address of this machine in its private network")
    return "127.0.0.1" if ip is None else str(ip)


def read_server(folder: Path) -> ServerFile:
    """Return the server in a folder."""
    if not (folder / SERVER).exists():
        invalid("FOLDER", folder, f"contains no {SERVER}", "make it with sightline server init")
    return read_section(folder / SERVER, ServerFile, SERVER)


class RegisteredSite(SiteRequest):
    """One `[[site]]` of the register; `examples` is what the owner told the operator."""

    name: Name | None = None  # type: ignore[assignment]
    client: Annotated[int, Field(ge=0, le=MOST_CLIENT)]


class RegisterFile(Section):
    """The register file."""

    site: list[RegisteredSite]


def read_sites(folder: Path) -> list[RegisteredSite]:
    """Return the sites that a server has invited."""
    path = folder / REGISTER
    return read_section(path, RegisterFile, "register").site if path.exists() else []


def assign_numbers(known: Sequence[RegisteredSite], requests: Sequence[SiteRequest]) -> list[RegisteredSite]:
    """Return the register with more sites, by number.

    A site that is known by its key or name keeps its number, and its new key and size are taken. Raise InvalidInput if
    two sites have one name or key.
    """
    result = list(known)
    for request in requests:
        same = [site.client for site in result if site.key == request.key or site.name == request.name]
        if len(same) > 1:
            invalid("REQUEST", request.name, "has the name of one registered site and the key of another", "rename it")
        number = same[0] if same else len(result)
        result[number:] = [RegisteredSite(**request.model_dump(), client=number), *result[number + 1 :]]
    if len({request.name for request in requests} | {request.key for request in requests}) != 2 * len(requests):
        invalid("REQUEST", len(requests), "two requests have one name or one key", "every site has its own")
    return result


def write_invitation(
    folder: Path, experiment: Experiment, sites: Sequence[RegisteredSite], days: float = 14.0
) -> bytes:
    """Write register, experiment and invitation of a server; return the invitation."""
    clients = experiment.data.clients
    if [site.client for site in sites] != list(range(clients)):
        reason = f"the experiment has {clients} clients, and these sites are {[site.client for site in sites]}"
        invalid("data.clients", clients, reason, f"give --set data.clients={len(sites)}, or the missing requests")
    text = invited_toml(experiment, sites)
    invitation = Invitation(
        server=read_server(folder).address,
        expires=(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)).replace(microsecond=0),
        certificate=(folder / CA).read_text(encoding="ascii"),
        experiment=text,
        sites={fingerprint_key(site.key): site.client for site in sites},
    )
    content = dump(invitation, "# An invitation to a federation. It holds no secret: send it to every site.\n").encode()
    write_public(folder / EXPERIMENT, text)
    head = "# Whose key is whose; written by sightline server invite.\n"
    write_public(folder / REGISTER, dump(RegisterFile(site=list(sites)), head))
    write_public(folder / INVITATION, content)
    return content


READ_AT_SITES = ("clients", "classes", "class_names", "public_test")
"""The keys of `[data]` that a run on sites reads: the rest describes data that no site has."""


def invited_toml(experiment: Experiment, sites: Sequence[RegisteredSite]) -> str:
    """Return the experiment with the sites' classes, without keys of `[data]` that are not read at sites.

    Raise InvalidInput if the sites have different classes, or others than the experiment says.
    """
    told = {site.client: (site.classes, site.class_names) for site in sites if site.classes is not None}
    first = next(iter(told), 0)
    for client, classes in told.items():
        if classes != told[first]:
            reason = f"client-{first} has {_class_words(*told[first])}, client-{client} has {_class_words(*classes)}"
            invalid("REQUEST: classes", client, reason, "every site must give the same --classes")
    plain: dict[str, Any] = experiment.model_dump(mode="json", exclude_none=True)
    data = {key: value for key, value in plain["data"].items() if key in READ_AT_SITES}
    if told:
        count, names = told[first]
        given, known = experiment.data.class_names, experiment.data.model_fields_set
        if ("classes" in known and experiment.data.classes != count) or (given and names and list(given) != names):
            said = list(given) if given else experiment.data.classes
            way_out = f"--set data.classes={json.dumps(names or count)}, or leave it out"
            invalid("data.classes", said, f"the sites have {_class_words(count, names)}", way_out)
        data |= {"classes": count} | ({"class_names": names} if names else {})
    return tomli_w.dumps(plain | {"data": data})


def _class_words(count: int | None, names: list[str] | None) -> str:
    return f"{count} classes" + (f" ({', '.join(names[:8])})" if names else "")


# a site


def init_site(
    folder: Path, name: str, policy: Mapping[str, Any], data: bytes, examples: int, users: Sequence[str],
    class_names: Sequence[str] = (),
) -> SiteRequest:  # fmt: skip
    """Make the folder of a site: policy and data, a key for its node, and the request for the operator."""
    key, line = make_node_key(name)
    request = SiteRequest(
        name=name, key=line, examples=examples, classes=policy.get("classes"), class_names=list(class_names) or None
    )
    if len(os.fsencode(folder.resolve() / "socket" / "site.socket")) > LONGEST_SOCKET:
        invalid("FOLDER", folder, "its path is too long for a Unix socket in it", "choose a shorter one")
    _new_folder(folder, users)
    site, node, apps = users or (None, None, None)
    make_folder(folder / "site", site)
    write_for(folder / "site" / "data.npz", data, site)
    write_for(folder / "site" / "site.toml", tomli_w.dumps(dict(policy)).encode(), site)
    make_folder(folder / "counter", site)
    make_folder(folder / "socket", site, 0o750)
    write_for(make_folder(folder / "node", node) / NODE_KEY, key, node)
    secret = os.urandom(32)
    write_for(folder / "node" / SECRET, secret, node)
    write_for(make_folder(folder / "apps", apps) / SECRET, secret, apps)
    head = "# A site's request to the operator of a server. It holds no secret.\n"
    write_public(request_path(folder, name), dump(request, head))
    write_public(folder / "node.toml", dump(NodeFile(name=name, users=list(users))))
    return request


def request_path(folder: Path, name: str) -> Path:
    """Return the path of a site's request: `NAME.request.toml`, or `request.toml` where an older version wrote it."""
    return folder / REQUEST if (folder / REQUEST).exists() else folder / f"{name}.{REQUEST}"


def read_node(folder: Path) -> NodeFile:
    """Return the node file of a site."""
    if not (folder / "node.toml").exists():
        invalid("FOLDER", folder, "contains no node.toml", "make it with sightline site init")
    return read_section(folder / "node.toml", NodeFile, "node.toml")


def read_invitation(path: Path) -> tuple[Invitation, bytes, Experiment]:
    """Return an invitation, its bytes and its experiment; raise InvalidInput if any part of it is wrong."""
    invitation = read_section(path, Invitation, "INVITATION")
    split_address(invitation.server)
    check_certificate(invitation.certificate.encode(), "INVITATION")
    now = datetime.datetime.now(datetime.UTC)
    if invitation.expires.tzinfo is None or now > invitation.expires:
        reason = f"expired; this clock says {now:%Y-%m-%d %H:%M} UTC"
        invalid("INVITATION: expires", invitation.expires, reason, "set the clock, or ask the operator for a new one")
    try:
        experiment = parse(tomllib.loads(invitation.experiment))
    except tomllib.TOMLDecodeError as error:
        invalid("INVITATION: experiment", path, f"is not TOML ({error})")
    return invitation, path.read_bytes(), experiment


def join_server(folder: Path, invitation: Invitation, content: bytes) -> int:
    """Record the server of an invitation and the site's number in its folder; return the number.

    Raise InvalidInput if the invitation is not for this site, or the site has another number for life.
    """
    node = read_node(folder)
    path = request_path(folder, node.name)
    request = read_section(path, SiteRequest, path.name)
    number = invitation.sites.get(fingerprint_key(request.key))
    if number is None:
        reason = f"is for {len(invitation.sites)} other sites, not for the key {fingerprint_key(request.key)}"
        invalid("INVITATION", node.name, reason, f"send {path} to the operator")
    if (folder / CA).exists() and (folder / CA).read_text(encoding="ascii") != invitation.certificate:
        reason = "is of another certificate authority than the one that this site has joined"
        way_out = f"ask the operator by telephone; if the server was made again, remove {folder / CA} first"
        invalid("INVITATION", node.name, reason, way_out)
    path = folder / "site" / "site.toml"
    text = path.read_text(encoding="utf-8")
    known = tomllib.loads(text).get("client")
    if known is None:
        write_for(path, f"client = {number}\n{text}".encode(), node.users[0] if node.users else None)
    elif known != number:
        reason = f"gives this site the number {number}, but its state belongs to number {known}"
        way_out = f"the operator gives it {known} if {known} other requests come before this one"
        invalid("INVITATION", node.name, reason, way_out)
    write_public(folder / CA, invitation.certificate)
    write_public(folder / EXPERIMENT, invitation.experiment)
    write_public(folder / INVITATION, content)
    write_public(folder / "node.toml", dump(node.model_copy(update={"server": invitation.server})))
    return number
