"""What a site allows: its own file, which no message can change."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from sightline.config import Data, Experiment
from sightline.config.section import Positive, Section
from sightline.data import Client, Federation, Kind, Shard
from sightline.data.formats import read_arrays
from sightline.data.own import KINDS, checked_client
from sightline.errors import invalid

POLICY = "site.toml"
ARRAYS = ("train_x", "train_y", "test_x", "test_y")


class SitePolicy(Section):
    """A site's number in the experiments, its data, and what may leave it over its whole life."""

    client: Annotated[int, Field(ge=0)]
    data: str = "data.npz"
    classes: Annotated[int, Field(ge=2)]
    vocabulary: Annotated[int, Field(ge=0)] = 0
    unit: Literal["client", "sample"]
    adjacency: Literal["add_remove", "replace"] = "add_remove"
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    allow_large_delta: bool = False
    """Whether delta may be one over the number of protected units, or more."""
    counter: str | None = None
    """A file outside the state folder that holds the number of the newest state: an older state answers nothing.
    The default is `NAME.counter` beside the site's folder NAME."""
    witness: str | None = None
    """Or a command that is given that number and prints the newest it was given."""
    trust_server: bool = False
    """Whether the server may be handed clipped updates without noise; the budget is then against everybody else."""
    largest_seconds: Positive = 3600.0
    """An answer that takes longer to compute is a failure like any other."""
    answer_seconds: Positive | None = None
    """Every new answer leaves so long after its question, computed or failed: when it comes then tells nothing."""
    largest_bytes: Annotated[int, Field(ge=1 << 10, le=1 << 31)] = 1 << 30
    """A message of more bytes is not read."""
    models: dict[str, str] = Field(default_factory=dict)
    """The models that experiments may bring, `package.module:factory` -> SHA-256 of the module's source file."""
    plugins: dict[str, str] = Field(default_factory=dict)
    """The algorithms, mechanisms, topologies, samplers and resources that they may bring, as experiments name them:
    `package.module:OBJECT`, or a name that an installed package offers -> SHA-256 of the module's source file."""
    largest_steps: Annotated[int, Field(ge=1)] = 100_000
    """Local steps that one answer may take."""
    largest_start: Positive = 1e4
    """The norm of public vectors that the site works from."""
    known_keys: list[str] = Field(default_factory=list)
    """Ed25519 public keys of researchers, in hex."""
    require_signature: bool = False
    """Whether only experiments that one of those keys signed can be approved and answered."""
    arithmetic: Literal["integer", "float"] = "integer"
    """In what the site clips and noises its updates; "float" leaves it to the experiment."""

    def with_arithmetic(self, experiment: Experiment) -> Experiment:
        """The experiment as this site computes it: in integers, where integers hold its updates.

        Guarantees: events and epsilon stay the same; examples as the unit, and output and objective perturbation, have
        no integer form and stay in floating point.
        """
        privacy = experiment.privacy
        if self.arithmetic == "float" or (privacy.unit, privacy.mechanism) != ("client", "gaussian"):
            return experiment
        return experiment.model_copy(update={"privacy": privacy.model_copy(update={"arithmetic": "integer"})})


def read_policy(folder: Path) -> SitePolicy:
    """The policy in a site's folder; mistakes are one line."""
    return read_policy_file(folder / POLICY)


def read_policy_file(path: Path) -> SitePolicy:
    """The policy in a file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        if "own_code" in tables:
            law = "code is allowed by name and hash, not at large"
            invalid(f"{POLICY}: own_code", tables["own_code"], law, 'write "package.module:factory" = "SHA-256 of its '
                    'source file" under [models]')  # fmt: skip
        return SitePolicy.model_validate(tables)
    except FileNotFoundError:
        invalid("site", path.parent, f"holds no {POLICY}", "sightline flower shards makes examples")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        invalid("site", path, f"cannot be read ({type(error).__name__})")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        invalid(f"{POLICY}: {'.'.join(str(part) for part in first['loc'])}", first["input"], first["msg"])


def read_data(folder: Path, policy: SitePolicy) -> Client:
    """The site's examples: an .npz archive of train_x, train_y, test_x and test_y, checked as users' own data are."""
    path = folder / policy.data
    arrays = tuple(read_arrays(path, ARRAYS).values())
    return checked_client("site", arrays, Data(source=str(path), classes=policy.classes))


def federation_of(client: Client, number: int, clients: int, *, classes: int, vocabulary: int) -> Federation:
    """The federation as one site sees it: its own data at its own number, and as many blank examples elsewhere."""
    blank = Client(blank_shard(client.train, len(client.train)), blank_shard(client.train, 0))
    everybody = tuple(client if n == number else blank for n in range(clients))
    return Federation("site", everybody, blank.test, classes, kind_of(client.train), vocabulary)


def blank_shard(like: Shard, examples: int) -> Shard:
    """Examples that nobody has: zeros of the right shape that take no memory."""
    shape = (examples, *like.x.shape[1:])
    if not examples:
        return Shard(np.empty(shape, like.x.dtype), np.empty(0, np.int64))
    x, y = np.zeros((), like.x.dtype), np.zeros((), np.int64)
    return Shard(np.broadcast_to(x, shape), np.broadcast_to(y, examples))


def kind_of(shard: Shard) -> Kind:
    """Vectors, images or text, by the inputs' type and shape."""
    return KINDS[shard.x.dtype.kind, shard.x.ndim]
