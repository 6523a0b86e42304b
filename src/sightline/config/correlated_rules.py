"""What turns and correlated noise need of an experiment file, in one-line errors with the reason."""

from typing import TYPE_CHECKING, Literal

from sightline.config.section import Count, Section
from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment

TURNS = 'use sampling.clients = {scheme = "turns", groups = 10}'
INDEPENDENT = 'use privacy.noise = "independent"'

NO_TURNS = {
    "full": "whoever takes part in every round gains nothing from correlated noise",
    "poisson": "hidden draws out of everybody keep no distance between the rounds of a client",
    "balanced": "a hidden schedule keeps no distance between the rounds of a client",
    "check_ins": "random check-ins keep no distance between the rounds of a client",
    "fixed": "a cohort of a fixed size keeps no distance between the rounds of a client",
}
"""Why correlated noise has no bound with a scheme other than turns."""


class Correlated(Section):
    """How the noises of rounds belong together: n = C^-1 z, and what the strategy C is made for."""

    strategy: Literal["bsr", "band", "blt"] = "bsr"
    """The banded square root; bands that are optimised; two buffers that are optimised."""
    bands: Count | None = None
    """Coefficients of a banded strategy; by default as many as rounds lie between two uses of a client."""
    separation: Count | None = None
    """b: between two uses of a client lie at least so many rounds; by default the number of groups."""
    uses: Count | None = None
    """k: a client is used at most so often in a stream; by default as often as its group has a turn."""
    restart: Count | None = None
    """After so many rounds a new stream begins, with noise of its own; by default one stream is the whole run."""


def check_turns(experiment: "Experiment") -> None:
    """Groups that take turns are public; hidden draws inside them are independent draws."""
    clients = experiment.sampling.clients
    if clients.scheme != "turns" or clients.groups is None:
        return
    if clients.groups > experiment.data.clients:
        law = f"data.clients={experiment.data.clients} cannot fill them"
        invalid("sampling.clients.groups", clients.groups, law, "use fewer groups")
    if clients.rate is not None and experiment.privacy.adjacency == "replace":
        law = "draws inside a group are accounted as add/remove"
        refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove", or turns without a rate')


def check_correlated(experiment: "Experiment") -> None:
    """Refuse correlated noise wherever one Gaussian for a whole stream is not proven."""
    privacy = experiment.privacy
    if privacy.noise != "correlated":
        if privacy.correlated is not None:
            law = "is of correlated noise, and the noise is independent"
            invalid("privacy.correlated", "given", law, 'use privacy.noise = "correlated", or remove it')
        return
    _check_mechanism(experiment)
    _check_bands(privacy.correlated or Correlated())
    if privacy.unit == "sample":
        _check_batches(experiment)
        return
    _check_participation(experiment)
    _check_strategy(experiment)


def _check_mechanism(experiment: "Experiment") -> None:
    """Clipped updates of clients, noised by whoever gathers them and is trusted with it."""
    privacy, name, value = experiment.privacy, "privacy.noise", "correlated"
    if privacy.unit == "none":
        invalid(name, value, 'unit = "none" adds no noise', 'use unit = "client"')
    if privacy.mechanism != "gaussian":
        law = f"streams are of Gaussian noise on clipped updates, and this is {privacy.mechanism}"
        refuse(name, value, law, 'use mechanism = "gaussian"')
    if privacy.place == "client" and privacy.unit == "client":
        law = (
            "a client that adds its own noise is in every one of its releases, and gains nothing from correlated noise"
        )
        refuse(name, value, law, f'use where = "server" or trusted edges, or {INDEPENDENT}')
    if privacy.arithmetic == "integer":
        law = "multiples of earlier noises are not whole numbers"
        refuse(name, value, law, 'use arithmetic = "float"')
    if experiment.algorithm.split is not None:
        refuse(name, value, "hidden parts of the model have no bound over the rounds of a stream", "remove split")
    if experiment.algorithm.settings.get("control") is not None:
        law = "adaptive control changes on the way who takes part and how often"
        refuse(name, value, law, f"remove algorithm.control, or {INDEPENDENT}")
    if experiment.topology.kind == "clusters":
        law = "members move between clusters, and a stream counts the uses of those who stay"
        refuse(name, value, law, f"use a star, a tree or groups, or {INDEPENDENT}")


def _check_bands(settings: Correlated) -> None:
    """Bands that a strategy can have."""
    if settings.strategy == "blt" and settings.bands is not None:
        law = "blt has buffers in the place of bands"
        invalid("privacy.correlated.bands", settings.bands, law, "leave it out, or use bsr or band")
    if settings.bands == 1:
        law = "one band is independent noise: there is no gain"
        refuse("privacy.correlated.bands", 1, law, f"give 2 or more, or {INDEPENDENT}")


def _check_batches(experiment: "Experiment") -> None:
    """Single examples, noised by their own client: fixed batches in a fixed order, a stream for every round."""
    privacy, settings = experiment.privacy, experiment.privacy.correlated or Correlated()
    if privacy.place != "client" or privacy.sensitivity is not None:
        law = "single examples have streams where their own client noises clipped steps"
        refuse("privacy.noise", "correlated", law, f'use where = "client" without sensitivity, or {INDEPENDENT}')
    if experiment.sampling.samples is not None:
        law = "batches are fixed and in a fixed order: draws and schedules keep no distance between steps of an example"
        refuse("sampling.samples", "given", law, f"remove it, or {INDEPENDENT}")
    for key in ("separation", "uses", "restart"):
        if getattr(settings, key) is not None:
            law = "follows from the batches of an epoch, and every round of a client is a stream"
            invalid(f"privacy.correlated.{key}", getattr(settings, key), law, "leave it out")


def _check_participation(experiment: "Experiment") -> None:
    """Public groups in turns: the one participation whose distance between uses is known beforehand."""
    clients, settings = experiment.sampling.clients, experiment.privacy.correlated or Correlated()
    if clients.scheme not in (*NO_TURNS, "turns") and ":" not in clients.scheme:
        return  # no such sampler: whoever looks it up says so, and what is near it
    if clients.scheme != "turns":
        law = NO_TURNS.get(clients.scheme, "of other schemes nobody knows the distance between rounds of a client")
        refuse("privacy.noise", "correlated", law, f"{TURNS}, or {INDEPENDENT}")
    groups = clients.groups or 1
    if groups == 1:
        law = "one group takes part in every round, and gains nothing from correlated noise"
        refuse("sampling.clients.groups", groups, law, f"use 2 or more, or {INDEPENDENT}")
    if settings.separation is not None and not 2 <= settings.separation <= groups:
        law = f"turns of {groups} groups keep rounds of a client {groups} apart, and with less than 2 there is no gain"
        refuse("privacy.correlated.separation", settings.separation, law, "leave it out")
    length = min(settings.restart or experiment.rounds, experiment.rounds)
    needed = -(-length // groups)
    if settings.uses is not None and settings.uses < needed:
        law = f"every group has {needed} turns in {length} rounds"
        refuse("privacy.correlated.uses", settings.uses, law, "leave it out, or restart earlier")


def _check_strategy(experiment: "Experiment") -> None:
    """Rounds that a stream can have; hidden draws need as many groups as bands."""
    clients, settings = experiment.sampling.clients, experiment.privacy.correlated or Correlated()
    length = min(settings.restart or experiment.rounds, experiment.rounds)
    if length < 2:
        refuse("privacy.correlated.restart", length, "noises of one round have nothing to cancel", "give 2 or more")
    if clients.rate is None:
        return
    if settings.strategy == "blt":
        law = "hidden draws hide only where noises are correlated over a few rounds, and blt never forgets"
        refuse("privacy.correlated.strategy", "blt", law, 'use "bsr" or "band", or turns without a rate')
    if settings.bands is not None and settings.bands > (clients.groups or 1):
        law = f"hidden draws hide only where a group's next turn, {clients.groups} rounds later, meets other noise"
        refuse("privacy.correlated.bands", settings.bands, law, f"use at most {clients.groups}")
    for key in ("separation", "uses"):
        if getattr(settings, key) is not None:
            law = "with hidden draws every turn is charged by itself"
            invalid(f"privacy.correlated.{key}", getattr(settings, key), law, "leave it out")
