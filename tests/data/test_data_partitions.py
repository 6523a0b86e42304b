"""The laws of dealing: nobody's example is lost or doubled, nobody is empty, the seed decides everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.partition import (
    by_owner,
    cluster_of,
    deal_clusters,
    deal_dirichlet,
    deal_iid,
    draw_subsample,
    grouped_users,
    label_shards,
    one_user_each,
    share_by_cluster,
    split_examples,
)
from sightline.errors import InvalidInput

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=60, deadline=None)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def dealt_once(parts: list[np.ndarray], examples: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(examples))


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@given(seeds, st.integers(1, 40), st.integers(0, 400))
@quick
def test_iid(seed: int, clients: int, more: int) -> None:
    parts = deal_iid(clients + more, clients=clients, rng=rng(seed))
    sizes = [len(part) for part in parts]
    assert dealt_once(parts, clients + more)
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1
    assert same(parts, deal_iid(clients + more, clients=clients, rng=rng(seed)))


@given(seeds, st.integers(1, 30), st.integers(0, 600), st.integers(1, 10), st.floats(1e-3, 1e3))
@quick
def test_dirichlet(seed: int, clients: int, more: int, classes: int, concentration: float) -> None:
    labels = rng(seed).integers(0, classes, clients + more)
    parts = deal_dirichlet(labels, clients=clients, concentration=concentration, rng=rng(seed + 1))
    assert dealt_once(parts, clients + more)
    assert min(len(part) for part in parts) >= max(1, min(10, len(labels) // (2 * clients)))
    assert same(parts, deal_dirichlet(labels, clients=clients, concentration=concentration, rng=rng(seed + 1)))


@pytest.mark.parametrize("concentration", [1e-300, 1e-12, 1e300])
def test_dirichlet_at_the_ends_of_its_range(concentration: float) -> None:
    labels = np.arange(500) % 10
    parts = deal_dirichlet(labels, clients=20, concentration=concentration, rng=rng(0))
    assert dealt_once(parts, 500)
    assert min(len(part) for part in parts) >= 10


def test_dirichlet_proportions_have_the_right_mean_and_variance() -> None:
    """A client's share of a class has mean 1/K and variance (1/K)(1 - 1/K)/(K c + 1): K = 5, c = 2."""
    labels = np.zeros(4000, dtype=np.int64)
    shares = [
        [len(part) / 4000 for part in deal_dirichlet(labels, clients=5, concentration=2.0, rng=rng(seed))]
        for seed in range(2000)
    ]
    variance = 0.2 * 0.8 / 11
    np.testing.assert_allclose(np.mean(shares, axis=0), 0.2, atol=5 * np.sqrt(variance / 2000))
    np.testing.assert_allclose(np.var(shares, axis=0), variance, rtol=0.25)


def test_less_concentration_means_more_skew() -> None:
    labels = np.arange(5000) % 10

    def skew(concentration: float) -> float:
        parts = deal_dirichlet(labels, clients=20, concentration=concentration, rng=rng(0))
        return float(np.mean([np.bincount(labels[part], minlength=10).max() / len(part) for part in parts]))

    assert skew(0.05) > skew(0.5) + 0.1 > skew(100.0) + 0.2


@given(seeds, st.integers(1, 30), st.integers(1, 10), st.data())
@quick
def test_label_shards(seed: int, clients: int, classes: int, data: st.DataObject) -> None:
    each = data.draw(st.integers(1, classes))
    labels = rng(seed).permutation(np.repeat(np.arange(classes) * 3, clients + 2))
    parts = label_shards(labels, clients=clients, labels_per_client=each, rng=rng(seed))
    holders = np.array([np.isin(np.arange(classes) * 3, labels[part]) for part in parts])
    assert (holders.sum(axis=1) == each).all()
    assert np.ptp(holders.sum(axis=0)) <= 1
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert set(everything) == set(np.flatnonzero(np.isin(labels, 3 * np.flatnonzero(holders.any(axis=0)))))
    for column in range(classes):
        counts = [
            int((labels[part] == 3 * column).sum()) for part, has in zip(parts, holders[:, column], strict=True) if has
        ]
        assert not counts or max(counts) - min(counts) <= 1
    assert same(parts, label_shards(labels, clients=clients, labels_per_client=each, rng=rng(seed)))


def test_label_shards_refuses_what_cannot_be() -> None:
    with pytest.raises(InvalidInput, match=r"data.labels_per_client=4: the data has 3 labels"):
        label_shards(np.arange(30) % 3, clients=2, labels_per_client=4, rng=rng(0))
    with pytest.raises(InvalidInput, match=r"data.clients=9: label \d has 2 examples for 3 clients"):
        label_shards(np.repeat(np.arange(3), 2), clients=9, labels_per_client=1, rng=rng(0))


@given(seeds, st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(0, 200))
@quick
def test_clusters(seed: int, clusters: list[int], more: int) -> None:
    examples = sum(clusters) + more
    once = deal_clusters(examples, clusters=clusters, reuse=False, rng=rng(seed))
    assert dealt_once(once, examples)
    parts = deal_clusters(examples, clusters=clusters, reuse=True, rng=rng(seed))
    assert {len(part) for part in parts} == {examples // max(clusters)}
    for group in range(len(clusters)):
        members = np.concatenate([part for part, k in zip(parts, cluster_of(clusters), strict=True) if k == group])
        assert len(np.unique(members)) == len(members)
    shares = share_by_cluster(examples, clusters=clusters, rng=rng(seed))
    assert dealt_once(shares, examples)
    exact = np.array(clusters) * examples / sum(clusters)
    assert (np.abs([len(share) for share in shares] - exact) < 1).all()


def test_the_papers_cluster_sizes() -> None:
    parts = deal_clusters(60_000, clusters=[3, 6, 6, 6], reuse=True, rng=rng(0))
    assert [len(part) for part in parts] == [10_000] * 21
    assert not np.array_equal(parts[3], parts[9])


@given(seeds, st.lists(st.integers(0, 15), min_size=1, max_size=200), st.data())
@quick
def test_users(seed: int, owners: list[int], data: st.DataObject) -> None:
    owner = np.array(owners) * 7
    users, counts = np.unique(owner, return_counts=True)
    clients = data.draw(st.integers(1, len(users)))
    top = one_user_each(owner, clients=clients)
    assert [len(part) for part in top] == sorted(counts, reverse=True)[:clients]
    assert all(len(set(owner[part])) == 1 for part in top)
    groups = grouped_users(owner, clients=clients, rng=rng(seed))
    assert dealt_once(groups, len(owner))
    assert min(len(part) for part in groups) >= 1
    assert sum(len(set(owner[part])) for part in groups) == len(users)
    assert same(groups, grouped_users(owner, clients=clients, rng=rng(seed)))
    with pytest.raises(InvalidInput, match=f"the data has {len(users)} users"):
        one_user_each(owner, clients=len(users) + 1)
    with pytest.raises(InvalidInput, match=f"the data has {len(users)} users"):
        grouped_users(owner, clients=len(users) + 1, rng=rng(0))


def test_by_owner_keeps_the_clients_of_the_source() -> None:
    parts = by_owner(np.array([1, 0, 1, 2]), clients=3)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]


@given(seeds, st.integers(1, 300), st.floats(0, 0.999))
@quick
def test_split(seed: int, examples: int, fraction: float) -> None:
    part = np.arange(examples) * 2
    train, test = split_examples(part, test_fraction=fraction, rng=rng(seed))
    assert np.array_equal(np.sort(np.concatenate([train, test])), part)
    assert len(train) >= 1
    assert (len(test) >= 1) == (examples > 1 and fraction > 0)
    assert abs(len(test) - examples * fraction) <= 1


@given(seeds, st.lists(st.integers(0, 9), min_size=1, max_size=100), st.data())
@quick
def test_subsample(seed: int, owners: list[int], data: st.DataObject) -> None:
    owner = np.array(owners)
    distinct = len(set(owners))
    keep = data.draw(st.integers(distinct, len(owners)))
    index = draw_subsample(len(owner), keep=keep, rng=rng(seed), owner=owner)
    assert len(index) == keep
    assert (np.diff(index) > 0).all()
    assert len(set(owner[index])) == distinct
    plain = draw_subsample(len(owner), keep=keep, rng=rng(seed))
    assert len(plain) == len(set(plain.tolist())) == keep
