"""Decentralised SGD on a graph: what reaches whom, by brute force; mixing, by a plain implementation."""

from itertools import product

import numpy as np
import pytest
import torch

import sightline
from sightline import accounting, engine
from sightline.algorithms import dsgd
from sightline.config import parse
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian
from sightline.mechanisms import Public
from sightline.randomness import Streams
from sightline.topology import build_topology, client_name

RING = {"kind": "graph", "structure": "ring"}


def experiment(clients=11, rounds=5, topology=RING, **more):
    plain = {
        "name": "graph", "rounds": rounds,
        "data": {"source": "digits", "clients": clients, "partition": "iid", "train_samples": 30 * clients},
        "model": {"name": "linear"}, "topology": topology, "algorithm": {"name": "dsgd"},
        "local": {"steps": 2, "batch_size": 8, "learning_rate": 0.5},
        "privacy": {"unit": "client", "where": "client", "epsilon": 8.0, "delta": 1e-3, "clip_norm": 0.5},
    }  # fmt: skip
    return parse(plain | more)


def graph(clients, **settings):
    return build_topology("graph", settings, clients=clients, place="client", streams=Streams.from_seed(3))


def knows(edges, nodes, rounds):
    """(observer, subject) -> how many of the subject's releases reached the observer, by spreading every message."""
    heard = [set() for _ in range(nodes)]
    for time in range(rounds):
        # What a node sends in this round holds its new release and all that it knew.
        sent = [known | {(node, time)} for node, known in enumerate(heard)]
        heard = [
            sent[node].union(*(sent[other] for other in range(nodes) if {node, other} in edges))
            for node in range(nodes)
        ]
    return {(a, b): sum(source == b for source, _ in heard[a]) for a, b in product(range(nodes), repeat=2) if a != b}


@pytest.mark.parametrize(
    "settings",
    [
        {"structure": "ring"},
        {"structure": "grid", "rows": 2},
        {"structure": "random", "probability": 0.35},
        {"structure": "complete"},
    ],
)
def test_a_run_is_charged_for_every_release_that_can_have_arrived(tmp_path, settings):
    made = graph(8, **settings)
    run = sightline.run(
        experiment(8, 4, RING | {"structure": None} | settings, seed=3), out=tmp_path / "run", progress=False
    )
    topology = engine.build_experiment(run.experiment).topology
    edges = [set(edge) for edge in topology.edges]
    counts = knows(edges, 8, 4)
    for (observer, subject), count in counts.items():
        seen = run.ledger.composition(client_name(subject), client_name(observer))
        assert seen.total() == count, (observer, subject)
        assert all(isinstance(event, Gaussian) for event in seen)
    assert made.trusted == ()
    worst = max(run.ledger.epsilon(client_name(b), client_name(a), 1e-3) for a, b in counts)
    assert run.epsilon == worst <= 8.0


def test_epsilon_falls_with_distance_on_a_ring(tmp_path):
    """At distance d the releases of all but the last d - 1 rounds have arrived."""
    run = sightline.run(experiment(), out=tmp_path / "run", progress=False)
    (noise,) = {event.noise_multiplier for event in run.ledger.composition("client-0", "client-1")}
    kinds = ["neighbours", *(f"nodes {hops} hops away" for hops in range(2, 6))]
    assert list(run.summary["observers"]) == kinds
    expected = [accounting.epsilon({Gaussian(noise): 5 - hops}, 1e-3) for hops in range(5)]
    assert list(run.summary["observers"].values()) == pytest.approx(expected, rel=1e-9)


def test_models_mix_by_metropolis_weights():
    made = graph(6, structure="grid", rows=2)
    weights = dsgd.metropolis_weights(made.channels)
    degree = [len(others) for others in made.neighbours]
    matrix = np.zeros((6, 6))
    for a, b in product(range(6), repeat=2):
        if b in made.neighbours[a]:
            matrix[a, b] = 1 / (1 + max(degree[a], degree[b]))
    np.fill_diagonal(matrix, 1 - matrix.sum(1))
    found = np.array([[weights[client_name(a)].get(client_name(b), 0.0) for b in range(6)] for a in range(6)])
    np.testing.assert_allclose(found, matrix)
    np.testing.assert_allclose(found, found.T)
    sent = {client_name(n): Public(torch.full((2,), float(n)), frozenset({n})) for n in range(6)}
    mixed = dsgd.mix_models(sent, weights["client-0"])
    assert mixed.value.tolist() == pytest.approx([matrix[0] @ np.arange(6)] * 2)
    assert mixed.sources == {0, *made.neighbours[0]}


def test_mixing_alone_brings_all_models_to_their_mean():
    made = graph(9, structure="ring")
    weights = dsgd.metropolis_weights(made.channels)
    state = {client_name(n): Public(torch.tensor([float(n)])) for n in range(9)}
    for _ in range(200):
        state = {name: dsgd.mix_models(state, weights[name]) for name in state}
    assert [value.value.item() for value in state.values()] == pytest.approx([4.0] * 9, abs=1e-3)


@pytest.mark.parametrize(
    ("topology", "clients", "words"),
    [
        (RING | {"structure": "rign"}, 6, 'did you mean "ring"'),
        (RING | {"rows": 2}, 6, "topology.rows=2: only applies to structure"),
        (RING | {"structure": "grid", "rows": 4}, 6, "must divide the 6 nodes evenly"),
        (RING | {"structure": "random", "probability": 0.0001}, 30, "was connected"),
        ({"kind": "graph"}, 6, "topology.structure=missing"),
        (RING | {"degree": 2}, 6, 'unknown setting of kind = "graph"'),
    ],
)
def test_what_cannot_be_a_graph_is_said_in_one_line(topology, clients, words):
    with pytest.raises(InvalidInput) as caught:
        engine.build_experiment(experiment(clients, 2, topology))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1 5", "edge 1 5"),
        ("0 1", "no path leads from node 0 to node 2"),
        ("0 x", "cannot be read"),
        ("0 1 2", "3 numbers"),
    ],
)
def test_a_file_of_edges_is_checked(tmp_path, text, words):
    path = tmp_path / "edges.txt"
    path.write_text("# a comment\n0 1\n1 2\n")
    assert graph(3, file=str(path)).edges == {(0, 1), (1, 2)}
    path.write_text(text)
    with pytest.raises(InvalidInput, match=words):
        graph(3, file=str(path))


def test_no_server_may_stand_between_the_nodes(tmp_path):
    with pytest.raises(InvalidInput, match="a graph has no server"):
        build_topology("graph", {"structure": "ring"}, clients=4, place="server")
    built = engine.build_experiment(experiment())
    with pytest.raises(Refused, match="one server, which would see everything"):
        engine.calibrate_noise(built, real_nodes=True)
    with pytest.raises(Refused, match=r"sampling\.clients\.scheme=fixed"):
        engine.build_experiment(experiment(sampling={"clients": {"scheme": "fixed", "rate": 0.5}}))
