"""One site in two worlds, with the subject's data and without, that share their secret root and so all their draws.

The attacker of these tests is exact: it sees both answers to every question, so that noise hides nothing from it.
"""

import shutil
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tomli_w
import torch

from sightline.config import parse
from sightline.randomness import write_secret
from sightline.runtimes.flower.export import export_shards
from sightline.runtimes.remote.message import WireMessage, experiment_digest
from sightline.runtimes.site.approval import APPROVALS
from sightline.runtimes.site.site import Site
from sightline.runtimes.site.state import RunStore
from sightline.training import dp_sgd_settings
from tests.flower.cases import changed, privacy

CLIENT, DIMENSION, EXAMPLES = 2, 63, 18
CLIP_NORM, RATE, BATCH, ALPHA = 0.4, 0.2, 6, 0.01
FEDDYN = {"name": "feddyn", "alpha": ALPHA}
STEP = {"steps": 1, "batch_size": BATCH, "learning_rate": RATE}
SMALL_START = 1e-6
"""Of a start's norm: float32 rounds a model's update by less."""


@dataclass(frozen=True)
class Claim:
    """What the site says of the answers of one experiment."""

    plain: dict
    distance: float
    """Between the answers with the subject and without it, where the same noise is added."""
    reach: float
    """Two answers with noise of their own are farther apart than this; with the same noise they are not."""
    poisson: bool = False
    """Whether the subject is drawn for an answer, and nothing changes when it is not."""


LOCAL = {"privacy": privacy("client", "client", noise_multiplier=2.0)}
OUTPUT = privacy("sample", mechanism="output", sensitivity="clipped_model", noise_multiplier=10.0)
CLAIMS = {
    "client": (
        Claim(changed(**LOCAL, algorithm=FEDDYN), CLIP_NORM, 2 * CLIP_NORM),
        Claim(changed(**LOCAL, rounds=3), CLIP_NORM, 2 * CLIP_NORM),
    ),
    "sample": (
        Claim(
            changed(privacy=privacy("sample", noise_multiplier=30.0), algorithm=FEDDYN, local=STEP),
            RATE * CLIP_NORM / BATCH, 2 * RATE * CLIP_NORM * EXAMPLES / BATCH, poisson=True,
        ),
        Claim(changed(privacy=OUTPUT, algorithm=FEDDYN, rounds=3), 2 * CLIP_NORM, 2 * CLIP_NORM),
    ),
}  # fmt: skip
"""Of each protected unit two experiments; the first is approved twice, for two runs."""


class SubjectDraws:
    """Poisson batches, and which of them the subject (the last example) was in; without it, it is left out of them."""

    def __init__(self):
        self.real, self.drawn, self.present = dp_sgd_settings.poisson_batches, 0, True

    def __call__(self, examples, rate, steps, rng):
        for batch in self.real(examples, rate, steps, rng):
            self.drawn += self.present and examples - 1 in batch
            yield batch if self.present else batch[batch != examples - 1]


class SiteWithout(Site):
    """The site when a client as a whole takes no part: its updates are zero."""

    def _compute_with(self, side, task, approval, kept, noised):
        run = side._simulator.run

        def stand_still(call):
            for members, ends in run(call):
                yield members, call.starts.expand_as(torch.as_tensor(ends)).clone()

        side._simulator.run = stand_still
        return super()._compute_with(side, task, approval, kept, noised)


class Worlds:
    """The two sites, asked and changed together."""

    def __init__(self, template: Path, place: Path, unit: str, draws: SubjectDraws) -> None:
        self.unit, self.draws, self.folders = unit, draws, (place / "with", place / "without")
        for folder, source in zip(self.folders, ("with", "without"), strict=True):
            shutil.copytree(template / source, folder)
        self.digest = (template / "digest").read_text()
        self.open()

    def open(self) -> None:
        """Both sites, as new processes would."""
        kinds = (Site, SiteWithout if self.unit == "client" else Site)
        self.sites = [kind(folder) for kind, folder in zip(kinds, self.folders, strict=True)]
        for site in self.sites:
            site._data_digest = self.digest  # it would key other draws, which no two worlds need to share

    def each(self, ask):
        """What `ask` says of each site, and how often the subject was drawn meanwhile."""
        found, self.draws.drawn = [], 0
        for present, site in zip((True, False), self.sites, strict=True):
            self.draws.present = present
            found.append(ask(site))
        return found, self.draws.drawn

    def approve(self, plain) -> list:
        """Approve an experiment once more in both."""
        return self.each(lambda site: site.approve(replace(site.draw_up(parse(plain)), data=self.digest)))[0]

    def save(self, to: Path) -> None:
        """A backup of both states; the counters are elsewhere."""
        for number, folder in enumerate(self.folders):
            shutil.copytree(folder / "state", to / str(number))

    def restore(self, source: Path) -> None:
        """Put backups in the place of both states."""
        for number, folder in enumerate(self.folders):
            shutil.rmtree(folder / "state")
            shutil.copytree(source / str(number), folder / "state")
        self.open()

    def keep_budget(self, source: Path) -> None:
        """Put back the file that the counter follows, from other backups than the rest."""
        for number, folder in enumerate(self.folders):
            shutil.copyfile(source / str(number) / "lifetime.sqlite", folder / "state" / "lifetime.sqlite")
        self.open()

    def store(self, id: str, world: int = 0) -> RunStore:
        """What a site remembers of the run of an approval."""
        return RunStore(self.folders[world] / "state" / APPROVALS / f"{id}.secret")

    def align(self, id: str) -> None:
        """Let the world without go on as if it had given the other's answers: noise might have made them equal."""
        own, other = self.store(id, 1), self.store(id).read()
        words = dict(other.fields) | {"mark": own.read().fields["mark"]}  # heads of marks are random in each world
        own.path.write_bytes(WireMessage(words, other.arrays).to_bytes())


def make_template(place: Path, unit: str, *, root: int = 0) -> Path:
    """Both sites of a unit, their experiments approved, with the same root and each with a counter of its own."""
    claims, made = CLAIMS[unit], place / unit
    folder = export_shards(parse(claims[0].plain), place / f"{unit}-shards", epsilon=1e3)[CLIENT]
    policy = folder / "site.toml"
    policy.write_text(tomli_w.dumps(tomllib.loads(policy.read_text()) | {"counter": "counter"}))
    (folder / "state").mkdir(mode=0o700)
    write_secret(folder / "state" / "noise-root.secret", root.to_bytes(32, "big"))  # a leak can be seen again
    site = Site(folder)
    for claim in (claims[0], *claims):
        site.approve(site.draw_up(parse(claim.plain)))
    for name in ("with", "without"):
        shutil.copytree(folder, made / name)
    (made / "digest").write_text(site._data_digest)
    with np.load(folder / "data.npz") as found:
        arrays = {name: np.array(found[name]) for name in found}
    assert len(arrays["train_x"]) == EXAMPLES
    subject = slice(None) if unit == "client" else slice(-1, None)
    arrays["train_x"][subject] *= -20
    arrays["train_y"][subject] = (arrays["train_y"][subject] + 1) % 3
    np.savez(made / "without" / "data.npz", **arrays)
    return made


@contextmanager
def watched_draws():
    """Poisson batches are counted, and the subject left out of them in the world without it."""
    draws = SubjectDraws()
    dp_sgd_settings.poisson_batches = draws
    try:
        yield draws
    finally:
        dp_sgd_settings.poisson_batches = draws.real


def digest_of(claim: Claim) -> str:
    """The name of its experiment."""
    return experiment_digest(parse(claim.plain))
