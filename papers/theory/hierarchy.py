"""The convergence bound of H2FDP term by term (Lin and Brinton 2024, Theorem 4.3), as printed and put right."""

import math
from dataclasses import dataclass
from functools import cached_property

from sightline import accounting
from sightline.algorithms.hierarchy.control import largest_gamma
from sightline.errors import invalid


@dataclass(frozen=True)
class Hierarchy:
    """The symbols of Theorem 4.3. Everything is public: sizes, settings, and constants of the assumptions."""

    smoothness: float
    """beta."""
    clip_norm: float
    """G, the bound on every stochastic gradient."""
    sgd_noise: float
    """sigma, of Assumption 1."""
    between: float
    """zeta, the diversity between subnets."""
    within: float
    """zeta_c, the diversity within a subnet."""
    devices: tuple[float, ...]
    """s_c of every subnet, N of them."""
    trusted: float
    """p_c."""
    tau: int
    local_aggregations: int
    """K_l of an interval."""
    rounds: int
    """K_g."""
    parameters: int
    """M."""
    rate: float
    """q, of a sample in a step."""
    epsilon: float
    delta: float
    gap: float
    """F(w_0) - F*; for the corrected bound the largest F(w_k) - F* of the run."""
    gamma: float | None = None
    c2: float | None = None
    v2: float | None = None

    def __post_init__(self) -> None:
        for name in ("smoothness", "clip_norm", "epsilon"):
            _check_constant(name, getattr(self, name), least=0.0, open_=True)
        for name in ("sgd_noise", "between", "within", "gap", "c2", "v2"):
            _check_constant(name, getattr(self, name), least=0.0)
        for name in ("tau", "local_aggregations", "rounds", "parameters"):
            _check_constant(name, getattr(self, name), least=1.0)
        for size in self.devices or (0.0,):
            _check_constant("devices", size, least=1.0)
        for name, open_ in (("trusted", False), ("rate", True)):
            _check_constant(name, getattr(self, name), least=0.0, most=1.0, open_=open_)
        if not 0 < self.delta < 1:
            invalid("delta", self.delta, "lies in (0, 1)")
        if self.gamma is not None and not 0 < self.gamma <= self.largest_gamma * (1 + 1e-12):
            law = f"the theorem needs 0 < gamma <= min(1/tau, 1/K_g)/beta = {self.largest_gamma:.6g}"
            invalid("gamma", self.gamma, law, "leave it out for the largest")

    @property
    def largest_gamma(self) -> float:
        """min(1/tau, 1/K_g) / beta."""
        return largest_gamma(self.tau, self.rounds, self.smoothness)

    @property
    def step(self) -> float:
        """gamma as given, else the largest that the theorem allows."""
        return self.largest_gamma if self.gamma is None else self.gamma

    @cached_property
    def accounted(self) -> float:
        """The constant with which eq. (15) gives the noise that is really needed: z epsilon / (q sqrt(L log(1/delta))).

        L = K_g K_l segments of m = tau / K_l steps, each released once; a sample bends a segment from its first draw
        on, at worst by a whole step there.
        """
        segments = self.rounds * self.local_aggregations
        return self.noise_multiplier * self.epsilon / (self.rate * math.sqrt(segments * math.log(1 / self.delta)))

    @property
    def segment(self) -> int:
        """m: the steps from one aggregation to the next."""
        return math.ceil(self.tau / self.local_aggregations)

    @cached_property
    def noise_multiplier(self) -> float:
        """z: the noise that the accountant asks for, in units of the sensitivity 2 eta m G of a segment."""
        segments = self.rounds * self.local_aggregations
        scheme = accounting.segment(noise=1.0, steps=self.segment, rate=self.rate, segments=segments)
        return scheme.calibrated(epsilon=self.epsilon, delta=self.delta).noise_multiplier

    @property
    def at_edges(self) -> float:
        """c2."""
        return self.accounted if self.c2 is None else self.c2

    @property
    def at_devices(self) -> float:
        """v2, which the paper does not define; the accountant's value like c2."""
        return self.accounted if self.v2 is None else self.v2

    def noise_of(self, devices: float) -> float:
        """p c2^2 / s^2 + (1 - p) v2^2 / s of a subnet."""
        return self.trusted * self.at_edges**2 / devices**2 + (1 - self.trusted) * self.at_devices**2 / devices


def _check_constant(
    name: str, value: float | None, *, least: float, most: float = math.inf, open_: bool = False
) -> None:
    if value is None:
        return
    if not (math.isfinite(value) and least <= value <= most) or (open_ and value == least):
        upper = f" and at most {most:g}" if math.isfinite(most) else ""
        invalid(name, value, f"is a number {'above' if open_ else 'from'} {least:g}{upper}")


@dataclass(frozen=True)
class Terms:
    """The mean squared gradient is at most a1 + a2 + b."""

    a1: float
    """What is left of the way from the start."""
    a2: float
    """Local steps, diversity and SGD noise."""
    b: float
    """Privacy noise: it does not shrink with the rounds."""

    @property
    def bound(self) -> float:
        """The sum."""
        return self.a1 + self.a2 + self.b


def published_terms(h: Hierarchy) -> Terms:
    """Equation (33) as printed."""
    root = math.sqrt(h.rounds + 1)
    return Terms(2 * h.step * h.gap / (h.tau * root), h.smoothness * h.step / root * _drift_term(h), privacy_noise(h))


def corrected_terms(h: Hierarchy) -> Terms:
    r"""What (56) gives: averaging 2 (F_k - F_k+1) / (eta_k tau) over eta_k = gamma / sqrt(k + 1) divides by gamma.

    By summation by parts it is at most 2 D / (gamma tau sqrt(K_g)), D the largest F(w_k) - F* of the run; and the mean
    of 1 / sqrt(k + 1) is at most 2 / sqrt(K_g).
    """
    root = math.sqrt(h.rounds)
    return Terms(
        2 * h.gap / (h.step * h.tau * root), 2 * h.smoothness * h.step / root * _drift_term(h), privacy_noise(h)
    )


def privacy_noise(h: Hierarchy) -> float:
    """Term (b): 4 tau (K_l^3 + 1) M q^2 G^2 log(1/delta) / (N^2 epsilon^2) sum_c (p c2^2 / s^2 + (1 - p) v2^2 / s)."""
    scale = h.parameters * (h.rate * h.clip_norm / (len(h.devices) * h.epsilon)) ** 2 * math.log(1 / h.delta)
    return 4 * h.tau * (h.local_aggregations**3 + 1) * scale * math.fsum(map(h.noise_of, h.devices))


def model_dispersion(h: Hierarchy) -> tuple[float, float]:
    """(B1^2, B2^2) of Proposition 4.2."""
    growth = 1 + (1 + 2 * h.step * h.smoothness) ** (h.tau - 1)
    b1 = ((2 * h.sgd_noise + h.within) * growth) ** 2
    rest = 2 * b1 + 2 * h.sgd_noise + h.between
    count = len(h.devices)
    scale = 2 * h.tau * h.clip_norm * h.rate / (h.epsilon * count)
    scale *= math.sqrt(h.parameters * h.local_aggregations * math.log(1 / h.delta))
    everywhere = math.sqrt(math.fsum(map(h.noise_of, h.devices)))
    phi = [(scale * (everywhere + count * math.sqrt(h.noise_of(size))) + rest) * growth + rest for size in h.devices]
    b2 = (1 + h.step * h.smoothness) ** (2 * (h.tau - 1)) * math.fsum(value**2 for value in phi) / count
    return b1, b2


def deviation_path(h: Hierarchy, *, as_printed: bool = False) -> list[tuple[float, float]]:
    """Return Lemma 4.1's bounds for every step of the first interval: of a device from its subnet, and of the subnets.

    The second is the largest over subnets of the root mean squared distance to the global model. Equal weights; the
    noise is the accountant's. Equation (31) as printed adds 2 beta Z_1, a squared distance, to roots of squared
    distances; by the triangle inequality it is 2 beta sqrt(Z_1), which is used unless `as_printed`.
    """
    eta, beta, count = h.step, h.smoothness, len(h.devices)
    reach = h.noise_multiplier * 2 * eta * h.segment * h.clip_norm
    variances = [reach**2 * (h.trusted / s**2 + (1 - h.trusted) / s) for s in h.devices]
    widest = 0.0  # max of sqrt(Z_1) over the interval: a device drifts until its subnet aggregates
    for _ in range(min(h.segment, h.tau) - 1):
        widest = (1 + 2 * eta * beta) * widest + eta * (2 * h.sgd_noise + h.within)
    drift = eta * (2 * beta * (widest**2 if as_printed else widest) + 2 * h.sgd_noise + h.between)
    device, subnets, path = 0.0, [0.0] * count, []
    for step in range(1, h.tau):  # the last step ends the interval
        gathers = step % h.segment == 0
        device = 0.0 if gathers else (1 + 2 * eta * beta) * device + eta * (2 * h.sgd_noise + h.within)  # (30)
        shared = eta * beta * math.fsum(subnets) / count + drift
        if gathers:
            shared += math.sqrt(h.parameters * math.fsum(variances)) / count
        own = [math.sqrt(h.parameters * variance) if gathers else 0.0 for variance in variances]
        subnets = [(1 + eta * beta) * was + shared + noise for was, noise in zip(subnets, own, strict=True)]  # (31)
        path.append((device, max(subnets)))
    return path


def _drift_term(h: Hierarchy) -> float:
    """beta tau (B1^2 + B2^2) + G^2 + tau sigma^2."""
    return h.smoothness * h.tau * math.fsum(model_dispersion(h)) + h.clip_norm**2 + h.tau * h.sgd_noise**2
