"""Who is below whom, who is trusted, and where that puts the noise."""

import itertools

import pytest

from sightline.errors import InvalidInput, Refused
from sightline.randomness import Streams
from sightline.topology import build_tree
from sightline.topology.tree import ELSEWHERE, SAME, UNTRUSTED


def built(clients=6, place="edge", seed=0, **settings):
    return build_tree(settings, clients=clients, place=place, streams=Streams.from_seed(seed))


def gathered(tree):
    return {channel.name: (channel.members, channel.trusted, channel.through) for channel in tree.gathering_channels}


def test_even_and_uneven_subnets():
    assert [c.members for c in built(subnets=3).channels] == [(0, 1), (2, 3), (4, 5)]
    assert [c.members for c in built(subnets=[1, 4, 1]).channels] == [(0,), (1, 2, 3, 4), (5,)]
    assert [c.members for c in built().channels] == [tuple(range(6))]
    assert [len(c.members) for c in built(clients=7, subnets=3).channels] == [2, 2, 3]


def test_trust_by_chance_is_nested_and_comes_from_the_seed():
    found = [set(built(clients=40, subnets=40, trusted=p).trusted) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert found == sorted(found, key=len)
    assert all(less <= more for less, more in itertools.pairwise(found))
    assert (len(found[0]), len(found[-1])) == (0, 40)
    assert 8 <= len(found[2]) <= 32  # fails by chance once in 20,000 seeds
    assert built(clients=40, subnets=40, trusted=0.5).trusted == built(clients=40, subnets=40, trusted=0.5).trusted
    assert (
        built(clients=40, subnets=40, trusted=0.5, seed=1).trusted != built(clients=40, subnets=40, trusted=0.5).trusted
    )


def test_noise_goes_up_a_trusted_chain_and_no_further():
    shape = {"clients": 8, "levels": [4, 2]}  # edges 0, 1 below region 0; edges 2, 3 below region 1
    chain = gathered(built(**shape, trusted=["edge-0", "edge-1", "region-0"]))
    assert chain == {
        "region-0": ((0, 1, 2, 3), True, frozenset({"edge-0", "edge-1"})),
        "edge-2": ((4, 5), False, frozenset()),
        "edge-3": ((6, 7), False, frozenset()),
    }
    below_untrusted = gathered(built(**shape, trusted=["edge-0", "edge-1"]))
    assert below_untrusted["edge-0"] == ((0, 1), True, frozenset())
    hole = gathered(built(**shape, trusted=["edge-0", "region-0"]))
    assert hole["region-0"] == ((0, 1), True, frozenset({"edge-0"}))
    assert hole["edge-1"] == ((2, 3), False, frozenset())  # trusting the region does not help below an untrusted edge
    upper_only = gathered(built(**shape, trusted=["region-0", "region-1"]))
    assert all(not trusted for _, trusted, _ in upper_only.values())


def test_who_sees_what_goes_up():
    tree = built(clients=8, levels=[4, 2], trusted=["edge-0"])
    seen = {channel.name: channel.audience for channel in tree.gathering_channels}
    assert seen["edge-0"] == {"edge-0", "region-0", "cloud"}
    assert seen["edge-2"] == {"edge-2", "region-1", "cloud"}
    local = {channel.name: channel.audience for channel in tree.channels}
    assert local["edge-0"] == {"edge-0", "client-0", "client-1"}
    assert {"public", "cloud", "edge-3", "region-1", "client-7"} <= tree.top.audience


def test_three_levels():
    tree = built(clients=8, levels=[4, 2, 1], trusted=1.0)
    (only,) = tree.gathering_channels
    assert (only.name, len(only.members)) == ("level3-0", 8)
    assert only.through == {"edge-0", "edge-1", "edge-2", "edge-3", "region-0", "region-1"}


def test_kinds_of_observers():
    tree = built(subnets=[3, 1, 2], trusted=["edge-0"])
    assert list(tree.lines) == ["cloud", UNTRUSTED, SAME, ELSEWHERE, "public"]
    assert [line.observer for line in tree.lines[UNTRUSTED]] == ["edge-1", "edge-2"]
    assert {line.observer for line in tree.lines[SAME]} == {"client-0", "client-1", "client-4", "client-5"}
    covered = {(line.observer, frozenset(f"client-{n}" for n in range(6)) - line.exempt) for line in tree.lines[SAME]}
    assert ("client-0", frozenset({"client-1", "client-2"})) in covered
    assert ("client-1", frozenset({"client-0", "client-2"})) in covered
    assert SAME not in built(clients=3, subnets=3).lines  # nobody has a mate
    assert ELSEWHERE not in built(subnets=1).lines
    assert UNTRUSTED not in built(subnets=2, trusted=1.0).lines


def test_the_cloud_is_trusted_only_with_everything_below_it():
    tree = built(subnets=2, place="server")
    assert tree.gathering_channels == (tree.top,)
    assert tree.trusted == ("edge-0", "edge-1", "cloud")
    assert "cloud" not in tree.lines
    with pytest.raises(Refused, match="edge-1 is not trusted and would see updates without noise"):
        built(subnets=2, place="server", trusted=["edge-0"])


def test_noise_at_the_devices_trusts_nobody_and_says_so():
    tree = built(subnets=2, place="client", trusted=1.0)
    assert tree.trusted == ()
    assert not any(channel.trusted for channel in (*tree.channels, *tree.gathering_channels))
    assert "not used" in tree.notes[0]


def test_a_tree_from_a_file(tree_file):
    north = {"name": "north", "trusted": True, "servers": [
        {"name": "oslo", "trusted": True, "devices": [0, 3]}, {"name": "rome", "devices": [1]},
    ]}  # fmt: skip
    tree = built(clients=4, file=tree_file(north, {"name": "far", "devices": [2]}))
    assert gathered(tree) == {
        "north": ((0, 3), True, frozenset({"oslo"})), "rome": ((1,), False, frozenset()), "far": ((2,), False, frozenset()),
    }  # fmt: skip
    assert tree.trusted == ("north", "oslo")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"subnets": 0}, "1 to 6 subnets"),
        ({"subnets": 7}, "1 to 6 subnets"),
        ({"subnets": [3, 2]}, "add up to data.clients=6"),
        ({"subnets": [7, -1]}, "list of their sizes"),
        ({"subnets": "ten"}, "list of their sizes"),
        ({"subnets": True}, "list of their sizes"),
        ({"trusted": 1.5}, "probability"),
        ({"trusted": True}, "probability"),
        ({"subnets": 2, "trusted": ["edge-7"]}, "unknown server"),
        ({"levels": [2, 3]}, "must not have more servers"),
        ({"levels": "two"}, "whole numbers"),
        ({"levels": [2], "subnets": 3}, "must begin with the number of edges"),
        ({"subnet": 3}, 'did you mean "subnets"'),
        ({"file": "nowhere.json"}, "no such file"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, words):
    with pytest.raises(InvalidInput, match=words) as error:
        built(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ([{"name": "a", "devices": [0, 1]}], "is below no edge server"),
        ([{"name": "a", "devices": [0, 1, 2, 3]}, {"name": "b", "devices": [3]}], "one edge server only"),
        ([{"name": "a", "devices": [0, 1]}, {"name": "a", "devices": [2, 3]}], "two servers"),
        ([{"name": "a", "devices": [9]}], "numbered 0 to 3"),
        ([{"name": "a"}], "devices or servers"),
        ([{"name": "cloud", "devices": [0]}], "not a reserved name"),
        ([{"name": "client-1", "devices": [0]}], "not a reserved name"),
        ([{"name": "a", "device": [0]}], "unknown key"),
        ([{"name": "a", "trusted": 1, "devices": [0]}], "true or false"),
    ],
)
def test_bad_files_are_refused_in_one_line(tree_file, servers, words):
    with pytest.raises(InvalidInput, match=words):
        built(clients=4, file=tree_file(*servers))
