"""What the grid found, for every data set and algorithm, for both arms (`grid.find_best`)."""

from papers.upcycled.cells import Tuned

TUNED: dict[str, dict[str, tuple[Tuned, Tuned]]] = {
    "iid": {
        "fedavg": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "fedavgm": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "fedprox": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "scaffold": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "feddyn": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "pfedme": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "fedyogi": (Tuned(0.02, server=0.1), Tuned(0.02, u=0.9, server=0.1)),
    },
    "syn00": {
        "fedavg": (Tuned(0.02), Tuned(0.02, u=0.3)),
        "fedavgm": (Tuned(0.02), Tuned(0.005, u=0.3)),
        "fedprox": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "scaffold": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "feddyn": (Tuned(0.1), Tuned(0.02, u=0.9)),
        "pfedme": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "fedyogi": (Tuned(0.02, server=0.1), Tuned(0.02, u=0.3, server=0.1)),
    },
    "syn55": {
        "fedavg": (Tuned(0.005), Tuned(0.005, u=0.6)),
        "fedavgm": (Tuned(0.005), Tuned(0.005, u=0.6)),
        "fedprox": (Tuned(0.1), Tuned(0.005, u=0.9)),
        "scaffold": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "feddyn": (Tuned(0.02), Tuned(0.02, u=0.3)),
        "pfedme": (Tuned(0.1), Tuned(0.1, u=0.3)),
        "fedyogi": (Tuned(0.02, server=0.1), Tuned(0.02, u=0.3, server=0.1)),
    },
    "syn11": {
        "fedavg": (Tuned(0.005), Tuned(0.005, u=0.9)),
        "fedavgm": (Tuned(0.005), Tuned(0.005, u=0.9)),
        "fedprox": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "scaffold": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "feddyn": (Tuned(0.02), Tuned(0.005, u=0.9)),
        "pfedme": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "fedyogi": (Tuned(0.02, server=0.1), Tuned(0.02, u=0.9, server=0.02)),
    },
    "letters": {
        "fedavg": (Tuned(0.1), Tuned(0.1, u=0.3)),
        "fedavgm": (Tuned(0.1), Tuned(0.1, u=0.3)),
        "fedprox": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "scaffold": (Tuned(0.1), Tuned(0.1, u=0.3)),
        "feddyn": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "pfedme": (Tuned(0.1), Tuned(0.1, u=0.9)),
        "fedyogi": (Tuned(0.1, server=0.02), Tuned(0.1, u=0.9, server=0.02)),
    },
    "letters26": {
        "fedavg": (Tuned(0.3), Tuned(0.3, u=0.3)),
        "fedavgm": (Tuned(0.3), Tuned(0.3, u=0.9)),
        "fedprox": (Tuned(0.3), Tuned(0.3, u=0.9)),
        "scaffold": (Tuned(0.3), Tuned(0.3, u=0.3)),
        "feddyn": (Tuned(0.3), Tuned(0.3, u=0.3)),
        "pfedme": (Tuned(0.3), Tuned(0.3, u=0.9)),
        "fedyogi": (Tuned(0.3, server=0.02), Tuned(0.3, u=0.3, server=0.02)),
    },
    "sent140": {
        "fedavg": (Tuned(0.3), Tuned(0.3, u=0.3)),
        "fedavgm": (Tuned(1.0), Tuned(0.3, u=0.9)),
        "fedprox": (Tuned(1.0), Tuned(0.3, u=0.3)),
        "scaffold": (Tuned(0.3), Tuned(0.3, u=0.9)),
        "feddyn": (Tuned(1.0), Tuned(0.3, u=0.3)),
        "pfedme": (Tuned(1.0), Tuned(1.0, u=0.3)),
        "fedyogi": (Tuned(1.0, server=0.1), Tuned(1.0, u=0.3, server=0.1)),
    },
}

LEAST_LOSS: dict[str, dict[str, tuple[Tuned, Tuned]]] = {
    "syn55": {
        "fedavg": (Tuned(0.005), Tuned(0.005, u=0.3)),
        "fedavgm": (Tuned(0.005), Tuned(0.005, u=0.3)),
        "fedprox": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "scaffold": (Tuned(0.02), Tuned(0.02, u=0.9)),
        "feddyn": (Tuned(0.1), Tuned(0.1, u=0.3)),
        "pfedme": (Tuned(0.1), Tuned(0.1, u=0.3)),
        "fedyogi": (Tuned(0.02, server=0.02), Tuned(0.02, u=0.9, server=0.005)),
    },
}
"""What the same grid has by least test loss, for the figures that show losses."""
