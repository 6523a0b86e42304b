"""The policy of a site: a file that no message can change, and the signatures under experiments."""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from sightline.config import Data, Experiment
from sightline.config.section import Positive, Section
from sightline.data import Client, Federation, Kind, Shard
from sightline.data.formats import read_arrays
from sightline.data.own import KINDS, checked_client
from sightline.errors import invalid, refuse

POLICY = "site.toml"
ARRAYS = ("train_x", "train_y", "test_x", "test_y")


class SitePolicy(Section):
    """A site's client number, its data, and what may leave it over its lifetime."""

    client: Annotated[int, Field(ge=0)]
    data: str = "data.npz"
    classes: Annotated[int, Field(ge=2)]
    vocabulary: Annotated[int, Field(ge=0)] = 0
    unit: Literal["client", "sample"]
    adjacency: Literal["add_remove", "replace"] = "add_remove"
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    allow_large_delta: bool = False
    """Whether delta may be 1 / (number of protected units) or more."""
    counter: str | None = None
    """File outside the state folder that holds the number of the newest state: an older state answers nothing. The
    default is `NAME.counter` beside the site's folder NAME."""
    witness: str | None = None
    """Instead of a file: a command that is given that number and prints the newest one it was given."""
    trust_server: bool = False
    """Whether the server may receive clipped updates without noise; the budget then protects against everyone else."""
    largest_seconds: Positive = 3600.0
    """Time limit for computing an answer; exceeding it is a failure like any other."""
    answer_seconds: Positive | None = None
    """Fixed time between a question and a new answer, computed or failed: the timing then tells nothing."""
    largest_bytes: Annotated[int, Field(ge=1 << 10, le=1 << 31)] = 1 << 30
    """Size limit: longer messages are not read."""
    models: dict[str, str] = Field(default_factory=dict)
    """Models that experiments may bring: `package.module:factory` -> SHA-256 of the module's source file."""
    plugins: dict[str, str] = Field(default_factory=dict)
    """Algorithms, mechanisms, topologies, samplers and resources that experiments may bring, as they name them:
    `package.module:OBJECT`, or a name that an installed package offers -> SHA-256 of the module's source file."""
    largest_steps: Annotated[int, Field(ge=1)] = 100_000
    """Limit of local steps per answer."""
    largest_start: Positive = 1e4
    """Limit of the norm of public vectors that the site computes from."""
    known_keys: list[str] = Field(default_factory=list)
    """Ed25519 public keys of researchers, in hex."""
    require_signature: bool = False
    """Whether only experiments signed by one of those keys can be approved and answered."""
    arithmetic: Literal["integer", "float"] = "integer"
    """Arithmetic in which the site clips and noises its updates; "float" leaves it to the experiment."""

    def with_arithmetic(self, experiment: Experiment) -> Experiment:
        """Return the experiment as this site computes it: in integers where integers can hold its updates.

        Guarantees: events and epsilon do not change. Examples as the unit, and output and objective perturbation, have
        no integer form and stay in floating point.
        """
        privacy = experiment.privacy
        if self.arithmetic == "float" or (privacy.unit, privacy.mechanism) != ("client", "gaussian"):
            return experiment
        return experiment.model_copy(update={"privacy": privacy.model_copy(update={"arithmetic": "integer"})})


def site_folder(folder: Path) -> Path:
    """Return the folder with site.toml: `FOLDER/site` of a folder that `site init` made, else the folder itself."""
    return folder / "site" if (folder / "site" / POLICY).exists() else folder


def read_policy(folder: Path) -> SitePolicy:
    """Return the policy in a site's folder; raise InvalidInput with one line otherwise."""
    return read_policy_file(folder / POLICY)


def read_policy_file(path: Path) -> SitePolicy:
    """Return the policy in a file; raise InvalidInput with one line otherwise."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        # An earlier version allowed any code with one switch. It is refused by name, so that an owner notices.
        if "own_code" in tables:
            way_out = 'write "package.module:factory" = "SHA-256 of its source file" under [models]'
            invalid(f"{POLICY}: own_code", tables["own_code"], "code is allowed by name and hash only", way_out)
        if "client" not in tables:
            way_out = "sightline site join FOLDER INVITATION writes it, or write client = N"
            invalid(f"{POLICY}: client", "missing", "this site has no number: it has not joined a server yet", way_out)
        return SitePolicy.model_validate(tables)
    except FileNotFoundError:
        invalid("site", path.parent, f"contains no {POLICY}", "`sightline flower shards` writes example sites")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        invalid("site", path, f"cannot be read ({type(error).__name__})")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        invalid(f"{POLICY}: {'.'.join(str(part) for part in first['loc'])}", first["input"], first["msg"])


def read_data(folder: Path, policy: SitePolicy) -> Client:
    """Return the site's examples from an .npz archive of train_x, train_y, test_x and test_y, checked as user data."""
    path = folder / policy.data
    arrays = tuple(read_arrays(path, ARRAYS).values())
    return checked_client("site", arrays, Data(source=str(path), classes=policy.classes))


def federation_of(client: Client, number: int, clients: int, *, classes: int, vocabulary: int) -> Federation:
    """Return the federation as one site sees it: its own data at its own number, and blank examples elsewhere."""
    blank = Client(blank_shard(client.train, len(client.train)), blank_shard(client.train, 0))
    everyone = tuple(client if n == number else blank for n in range(clients))
    return Federation("site", everyone, blank.test, classes, kind_of(client.train), vocabulary)


def blank_shard(like: Shard, examples: int) -> Shard:
    """Return `examples` zero examples of the right shape, which take no memory."""
    shape = (examples, *like.x.shape[1:])
    if not examples:
        return Shard(np.empty(shape, like.x.dtype), np.empty(0, np.int64))
    # A broadcast scalar: a node that claims millions of examples must not make the server allocate them.
    x, y = np.zeros((), like.x.dtype), np.zeros((), np.int64)
    return Shard(np.broadcast_to(x, shape), np.broadcast_to(y, examples))


def kind_of(shard: Shard) -> Kind:
    """Return vectors, images or text, by the type and shape of the inputs."""
    return KINDS[shard.x.dtype.kind, shard.x.ndim]


PREFIX = b"sightline experiment "
"""Signed in front of the digest, so that a signature of anything else is not valid for an experiment."""
HEX = set("0123456789abcdef")


def make_key(path: Path) -> str:
    """Write a new private key, readable by its owner only, and return the public key in hex."""
    ed25519 = _load_cryptography()
    if path.exists():
        invalid("KEY", path, "the file exists already", "choose another name")
    key = ed25519.Ed25519PrivateKey.generate()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(key.private_bytes_raw().hex() + "\n")
    return str(key.public_key().public_bytes_raw().hex())


def sign_digest(path: Path, digest: str) -> str:
    """Return `PUBLIC KEY SIGNATURE`, both in hex, made with the key in a file."""
    ed25519 = _load_cryptography()
    try:
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError) as error:
        invalid("--key", path, f"contains no key ({type(error).__name__})", "make one with sightline site keygen")
    return f"{key.public_key().public_bytes_raw().hex()} {key.sign(PREFIX + digest.encode()).hex()}"


def check_signature(policy: SitePolicy, digest: str, signature: str | None) -> str:
    """Return the key that signed the experiment, or "" if there is no signature and the policy requires none.

    Guarantees: a given signature is by a known key and of this exact digest; otherwise Refused is raised.
    """
    if signature is None:
        if policy.require_signature:
            refuse("--signature", "none", "this site approves only signed experiments", "sign it: sightline site sign")
        return ""
    key, _, signed = " ".join(signature.split()).partition(" ")
    if key not in {known.lower() for known in policy.known_keys}:
        refuse("--signature", key[:16], f"its key is not one of known_keys in {POLICY}", "ask the owner to add the key")
    if not signed or not set(key + signed) <= HEX or len(key) != 64 or not _verifies(key, signed, digest):
        refuse("--signature", signed[:16], "is not this key's signature of this experiment", "sign it again")
    return key


def check_signer(policy: SitePolicy, signed_by: str) -> None:
    """Raise Refused if the policy no longer accepts an approval signed by this key; "" means no signature."""
    if not signed_by and policy.require_signature:
        reason = "the experiment was approved without a signature, and this site now requires one"
        refuse("approval", "unsigned", reason, "approve it again with --signature")
    if signed_by and signed_by not in {known.lower() for known in policy.known_keys}:
        reason = f"the key that signed the experiment is no longer one of known_keys in {POLICY}"
        refuse("approval", signed_by[:16], reason, "approve it again, signed by a known key")


def _verifies(key: str, signed: str, digest: str) -> bool:
    from cryptography.exceptions import InvalidSignature  # type: ignore[import-not-found,unused-ignore]

    ed25519 = _load_cryptography()
    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signed), PREFIX + digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _load_cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        invalid("signature", "Ed25519", "the package cryptography is not installed", "pip install cryptography")
    return ed25519
