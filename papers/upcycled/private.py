"""Figures 3, 4, 7, 8, 9 and Table 5: all clients, no stragglers, as many iterations for both, half of them free."""

from collections.abc import Callable, Iterator
from typing import Any

from papers.upcycled.cells import ALGORITHMS, DATA_SEED, SEEDS, SYNTHETIC, Cell, experiment, synthetic_data
from papers.upcycled.tables import BILSTM, MLP, OCR, TEN, TWEETS

TUNED_OUTPUT = {"iid": (0.1, 0.3), "syn55": (0.07, 0.3), "syn00": (0.03, 0.5), "syn11": (0.01, 0.1)}
"""The authors' (learning rate, u) for output perturbation."""
PRINTED, REAL = (1.0, 0.8), (0.27, 0.2)
"""Standard deviations of the noise, plain and upcycled: on synthetic and on real data."""
RATES = {"synthetic": (10.0, 20.0), "letters": (100.0, 200.0), "sent140": (15.0, 30.0)}
"""The paper's alpha of objective perturbation, plain and upcycled."""
PROMISED = (("iid", 2.0, 40), ("iid", 8.0, 40), ("syn11", 2.0, 10))
"""(Data set, epsilon, iterations) of output perturbation with a guarantee; large clients make the others long."""
U, U_LARGE = 0.3, 0.9
"""Where the authors' files name none."""
ADMITTED = ("fedprox", "fedavg", "fedavgm", "fedyogi")
"""Algorithms that objective perturbation admits: FedProx by its proximal term, the others by weight decay."""
CONVEX = ("fedavg", "fedavgm", "fedprox", "fedyogi")
"""Algorithms whose clients run plain convex steps, so that the sensitivity is proven."""
CURVATURE = 0.5
"""Weight decay of objective perturbation, the printed mu."""
OUTPUT = {"figure3": ALGORITHMS, "figure7": ALGORITHMS, "figure8": CONVEX}
"""Figure -> the algorithms that are run with output perturbation; of tweets a subset, as in the paper."""
PFEDME_ITERATIONS = {"figure3": 4, "figure7": 8}
"""An iteration of pFedMe costs many times as much."""
FEW = {"clients": 10, "train_samples": 1000}
"""Ten clients of 100: private runs have every client train in every round."""

Privacy = Callable[[bool], dict[str, Any]]
"""Of the plain and of the upcycled arm."""


def as_published(stds: tuple[float, float], *, coded: bool = False) -> Privacy:
    """Models clipped to 10 and noised with the printed amount; the ledger states the true sensitivity, 2 x 10.

    The authors' code takes the square of a standard deviation for it.
    """

    def privacy(upcycled: bool) -> dict[str, Any]:
        std = stds[upcycled] ** 2 if coded else stds[upcycled]
        return {"unit": "sample", "mechanism": "output", "sensitivity": "clipped_model", "clip_norm": 10.0,
                "noise_std": round(std, 6), "adjacency": "replace"}  # fmt: skip

    return privacy


def convex(epsilon: float) -> Privacy:
    """Noise on the result of convex steps, calibrated to their sensitivity: a guarantee."""
    return lambda _: {"unit": "sample", "mechanism": "output", "sensitivity": "convex", "epsilon": epsilon}


def objective(rates: tuple[float, float] | None = None) -> Privacy:
    """Exact minimisers of a perturbed objective: at the paper's alpha, or at epsilon 8 for both. Both guaranteed."""
    fixed = {"unit": "sample", "mechanism": "objective"}
    return lambda upcycled: fixed | ({"epsilon": 8.0} if rates is None else {"noise_rate": rates[upcycled]})


def private_cell(
    part: str, algorithm: str, name: str, *, upcycled: bool, iterations: int, privacy: Privacy, u: float, seed: int,
    variant: str, **more: Any,
) -> Cell:  # fmt: skip
    """Plain with all iterations as rounds, or upcycled with half of them."""
    first, reduced = DATA_SEED.get(name, 0), more.pop("reduced", False)
    plain = experiment(
        algorithm, rounds=iterations // 2 if upcycled else iterations, seed=first + seed, u=u if upcycled else None,
        clients={"scheme": "full"}, evaluate_every=max(1, iterations // (20 if upcycled else 10)),
        privacy=privacy(upcycled), **more,
    )  # fmt: skip
    setting = f"u{u:g}" if upcycled else ""
    return Cell(part, algorithm, name, upcycled, seed, plain, variant, setting, first, None, reduced)


def private_pairs(part: str, algorithm: str, name: str, *, steps: tuple[float, ...], **more: Any) -> Iterator[Cell]:
    """For every seed the plain run, and one upcycled run for every u."""
    for seed in SEEDS:
        yield private_cell(part, algorithm, name, upcycled=False, u=steps[0], seed=seed, **more)
        for u in steps:
            yield private_cell(part, algorithm, name, upcycled=True, u=u, seed=seed, **more)


def output_pairs(
    part: str, algorithm: str, name: str, stds: tuple[float, float], *, u: float, iterations: int, **more: Any
) -> Iterator[Cell]:
    """Output perturbation as printed and as coded: no guarantee."""
    iterations = PFEDME_ITERATIONS[part] if algorithm == "pfedme" else iterations
    for variant in ("printed", "coded"):
        privacy = as_published(stds, coded=variant == "coded")
        yield from private_pairs(
            part, algorithm, name, steps=(u,), privacy=privacy, variant=variant, iterations=iterations, **more
        )


def figure3() -> Iterator[Cell]:
    """Output perturbation: as printed, as coded, and with a guarantee."""
    for name in SYNTHETIC:
        lr, u = TUNED_OUTPUT[name]
        data = synthetic_data(name)
        for algorithm in OUTPUT["figure3"]:
            yield from output_pairs("figure3", algorithm, name, PRINTED, u=u, iterations=10, lr=lr, data=data)
    for name, epsilon, iterations in PROMISED:
        for algorithm in CONVEX:
            yield from private_pairs(
                "figure3", algorithm, name, steps=(U_LARGE,), iterations=iterations, lr=1.0, data=synthetic_data(name),
                privacy=convex(epsilon), variant=f"epsilon{epsilon:g}", local={"epochs": 1, "momentum": 0.0},
            )  # fmt: skip


def objective_pairs(
    part: str, name: str, rates: tuple[float, float], *, algorithms: tuple[str, ...] = ADMITTED, **more: Any
) -> Iterator[Cell]:
    """Objective perturbation: at the paper's alpha, and at one epsilon, where the longer free step pays."""
    for algorithm in algorithms:
        local = {} if algorithm == "fedprox" else {"weight_decay": CURVATURE}
        for variant, privacy, u in (("printed", objective(rates), U), ("epsilon8", objective(), U_LARGE)):
            yield from private_pairs(
                part, algorithm, name, steps=(u,), privacy=privacy, variant=f"objective-{variant}", lr=0.1,
                local=local, **more,
            )  # fmt: skip


def figure4() -> Iterator[Cell]:
    """Objective perturbation on synthetic data."""
    for name in SYNTHETIC:
        yield from objective_pairs("figure4", name, RATES["synthetic"], iterations=10, data=synthetic_data(name))


def figure7() -> Iterator[Cell]:
    """Letters a-j."""
    more: dict[str, Any] = {"iterations": 20, "lr": 0.03, "data": TEN | FEW}
    for algorithm in OUTPUT["figure7"]:
        yield from output_pairs("figure7", algorithm, "letters", REAL, u=U, model=MLP, **more)
    yield from objective_pairs("figure7", "letters", RATES["letters"], iterations=8, data=TEN | FEW, reduced=True)


def figure8() -> Iterator[Cell]:
    """Tweets: a bi-LSTM for output perturbation, word counts for the exact minimisers of objective perturbation."""
    few = TWEETS | {"clients": 10, "train_samples": 1000}
    lstm: dict[str, Any] = {"model": BILSTM, "iterations": 8, "lr": 1.0, "data": few, "local": {"epochs": 3}}
    for algorithm in OUTPUT["figure8"]:
        yield from output_pairs("figure8", algorithm, "sent140", REAL, u=U, **lstm)
    yield from private_pairs(
        "figure8", "fedavg", "sent140", steps=(U,), privacy=lambda _: {"unit": "none"}, variant="without noise", **lstm
    )
    yield from objective_pairs("figure8", "sent140", RATES["sent140"], iterations=8, data=few, reduced=True)


def figure9() -> Iterator[Cell]:
    """26 letters, FedProx."""
    yield from output_pairs(
        "figure9", "fedprox", "letters26", REAL, u=U, model=MLP, iterations=20, lr=0.1, data=OCR | FEW
    )
    more: dict[str, Any] = {"iterations": 8, "data": OCR | FEW, "reduced": True, "algorithms": ("fedprox",)}
    yield from objective_pairs("figure9", "letters26", RATES["letters"], **more)


def table5() -> Iterator[Cell]:
    """Training time of every algorithm, output perturbation on Syn(iid), 8 iterations."""
    lr, u = TUNED_OUTPUT["iid"]
    for algorithm in ALGORITHMS:
        yield from private_pairs(
            "table5", algorithm, "iid", steps=(u,), iterations=8, lr=lr, data=synthetic_data("iid"),
            privacy=as_published(PRINTED), variant="printed",
        )  # fmt: skip
