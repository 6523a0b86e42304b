"""Small experiments of every algorithm, mechanism and sampler, and what it means that two runs are the same."""

import copy

from safetensors.numpy import load_file

from sightline.algorithms import REGISTRY

BASE = {
    "name": "same",
    "rounds": 4,
    "data": {"source": "synthetic", "partition": "natural", "clients": 6, "features": 8, "classes": 3, "size_min": 12,
             "size_mean": 2.0, "size_sigma": 0.5},
    "model": {"name": "mlp", "hidden": [5]},
    "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.2, "momentum": 0.5},
    "sampling": {"clients": {"scheme": "poisson", "rate": 0.7}},
    "privacy": {"unit": "client", "noise_multiplier": 0.8, "clip_norm": 0.4, "delta": 1e-3},
}  # fmt: skip
GROUPS = {"kind": "groups", "structure": "ring", "groups": 3, "period": 2}
LINEAR = {"model": {"name": "linear"}, "local": {"steps": 1, "weight_decay": 0.1}}


def changed(**sections):
    plain = copy.deepcopy(BASE)
    for name, value in sections.items():
        plain[name] = value
    return plain


def topology_of(name):
    kinds = REGISTRY[name].facts.topologies
    return {"kind": "star"} if "star" in kinds else GROUPS if "groups" in kinds else {"kind": kinds[0]}


def privacy(unit, where=None, **more):
    found = {"unit": unit, "delta": 1e-3, "clip_norm": 0.4} | more
    return found if where is None else found | {"where": where}


CASES = {
    "open": changed(privacy={"unit": "none"}),
    "local noise": changed(privacy=privacy("client", "client", noise_multiplier=2.0)),
    "local noise, calibrated": changed(privacy=privacy("client", "client", epsilon=20.0)),
    "integer arithmetic": changed(privacy=privacy("client", noise_multiplier=1.0, arithmetic="integer")),
    "adaptive clipping": changed(
        privacy=privacy("client", noise_multiplier=1.0, adaptive_clipping={"learning_rate": 0.9})
    ),
    "private steps": changed(privacy=privacy("sample", noise_multiplier=1.0)),
    "private steps, own noise": changed(privacy=privacy("sample", epsilon=5.0)),
    "private steps, correlated noise": changed(
        privacy=privacy("sample", noise_multiplier=2.0, noise="correlated"),
        local={"epochs": 2, "batch_size": 4, "learning_rate": 0.2},
    ),
    "gradient at the server": changed(
        privacy=privacy("sample", "server", noise_multiplier=1.0), local={"steps": 1, "batch_size": 8}
    ),
    "output": changed(privacy=privacy("sample", mechanism="output", sensitivity="clipped_model", noise_multiplier=1.0)),
    "output, exact": changed(
        **LINEAR, privacy=privacy("sample", mechanism="output", sensitivity="strongly_convex", noise_multiplier=1.0)
    ),
    "objective": changed(
        **LINEAR, privacy=privacy("sample", mechanism="objective", epsilon=60.0),
        algorithm={"name": "fedprox", "mu": 0.5},
    ),
    "stragglers": changed(local=BASE["local"] | {"stragglers": 0.6, "epochs": 3}),
    "fixed cohorts": changed(sampling={"clients": {"scheme": "fixed", "rate": 0.5}}),
}  # fmt: skip
TREE = {"kind": "tree", "subnets": [2, 1, 3], "trusted": ["edge-0", "edge-1"]}
ON_TREE = {
    "topology": TREE, "local": {"steps": 4, "batch_size": 4, "learning_rate": 0.3},
    "sampling": {"clients": {"scheme": "full"}},
}  # fmt: skip
H2FDP = {"name": "h2fdp", "local_aggregation": 2}
CLUSTERED = {
    "data": {"source": "digits", "clients": 6, "partition": "label_shift", "clusters": [3, 3], "train_samples": 120},
    "model": {"name": "linear"}, "topology": {"kind": "clusters", "count": 2},
    "privacy": privacy("sample", noise_multiplier=0.8), "sampling": {},
}  # fmt: skip
CASES |= {
    "tree, trusted edges noise": changed(
        **ON_TREE, algorithm=H2FDP, privacy=privacy("client", "edge", noise_multiplier=0.8)
    ),
    "tree, own noise": changed(**ON_TREE, algorithm=H2FDP, privacy=privacy("client", "edge", epsilon=20.0)),
    "tree, sample unit": changed(**ON_TREE, algorithm=H2FDP, privacy=privacy("sample", "edge", noise_multiplier=0.8)),
    "tree, convex segments": changed(
        **ON_TREE,
        model={"name": "linear"},
        algorithm=H2FDP,
        privacy=privacy("sample", "edge", noise_multiplier=0.8, sensitivity="convex"),
    ),
    "convex steps at the client": changed(
        **LINEAR, privacy=privacy("sample", "client", noise_multiplier=0.8, sensitivity="convex")
    ),
    "tree, fedavg": changed(topology=TREE, privacy=privacy("client", "edge", noise_multiplier=0.8)),
    "clusters chosen by nodes": changed(
        **CLUSTERED, algorithm={"name": "rdpcfl", "selection_rounds": 2, "selection_epsilon": 1.5}
    ),
    "clusters chosen in the clear": changed(
        **(CLUSTERED | {"privacy": {"unit": "none"}}), algorithm={"name": "ifca", "selection_rounds": 2}
    ),
    "balanced participation": changed(sampling={"clients": {"scheme": "balanced", "uses": 2}}),
    "balanced batches": changed(
        sampling={"clients": {"scheme": "full"}, "samples": {"scheme": "balanced", "uses": 2}},
        local={"steps": 2, "batch_size": 8, "learning_rate": 0.2},
        privacy=privacy("sample", noise_multiplier=1.0),
    ),
}
SPLIT = {"name": "fedavg", "split": {"parts": 2}}
CASES |= {
    "parts, central noise": changed(algorithm=SPLIT),
    "parts, local noise": changed(algorithm=SPLIT, privacy=privacy("client", "client", noise_multiplier=2.0)),
    "parts, private steps": changed(algorithm=SPLIT, privacy=privacy("sample", noise_multiplier=1.0)),
    "parts, gradient at the server": changed(
        algorithm=SPLIT,
        privacy=privacy("sample", "server", noise_multiplier=1.0),
        local={"steps": 1, "batch_size": 8},
    ),
    "schedules in groups": changed(
        algorithm={"name": "dp_ogl"}, topology=GROUPS, privacy=privacy("client", noise_multiplier=0.8),
        sampling={"clients": {"scheme": "balanced", "uses": 2}},
    ),
    "balanced gradients at the server": changed(
        sampling={"clients": {"scheme": "full"}, "samples": {"scheme": "balanced", "uses": 2}},
        local={"steps": 1, "batch_size": 8, "learning_rate": 0.2},
        privacy=privacy("sample", "server", noise_multiplier=1.0),
    ),
}  # fmt: skip
NO_TREE = {key: value for key, value in ON_TREE.items() if key != "topology"}
CASES |= {
    "algorithm pedpfl": changed(
        **NO_TREE, algorithm=H2FDP | {"name": "pedpfl"}, privacy=privacy("client", "client", noise_multiplier=0.8)
    ),
    "algorithm hfl_dp": changed(
        **ON_TREE, algorithm=H2FDP | {"name": "hfl_dp"}, privacy=privacy("client", "client", noise_multiplier=0.8)
    ),
    "algorithm hfl": changed(**ON_TREE, algorithm=H2FDP | {"name": "hfl"}, privacy={"unit": "none"}),
    "algorithm oracle_clusters": changed(**CLUSTERED, algorithm={"name": "oracle_clusters"}),
}
for name in REGISTRY:
    if f"algorithm {name}" not in CASES and {"star", "groups"} & set(REGISTRY[name].facts.topologies):
        where = "client" if REGISTRY[name].facts.personal else "server"
        CASES[f"algorithm {name}"] = changed(
            algorithm={"name": name}, topology=topology_of(name), privacy=privacy("client", where, noise_multiplier=0.8)
        )


def bits(run):
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in run.rounds]
    return rows, [release.body() for release in run.ledger]


def same(left, right):
    assert bits(left) == bits(right)
    ours, theirs = (load_file(run.directory / "model.safetensors") for run in (left, right))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes(), name


def releases_of(site):
    """What a site has let go of, over all runs."""
    with site._read_ledger() as ledger:
        return list(ledger)
