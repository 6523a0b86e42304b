"""Clients behind a post give the bits that the simulator gives, for every algorithm, mechanism and sampler."""

import pytest
import torch

import sightline
from sightline.algorithms import REGISTRY
from sightline.config import parse
from tests.flower.cases import CASES, changed, same


@pytest.mark.parametrize("case", CASES)
def test_nodes_give_the_bits_of_the_simulator(case, run_remotely, tmp_path):
    plain = CASES[case]
    here = sightline.run(parse(plain), out=tmp_path / "here")
    same(run_remotely(plain), here)


def test_every_algorithm_with_a_server_is_among_them():
    found = {plain.get("algorithm", {}).get("name", "fedavg") for plain in CASES.values()}
    assert found == {name for name, one in REGISTRY.items() if one.facts.topologies != ("graph",)}


def test_the_server_of_remote_clients_sums_with_one_thread(run_remotely):
    torch.set_num_threads(2)
    assert run_remotely(changed(rounds=1)).summary["threads"] == 1
