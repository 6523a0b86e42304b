"""The mixture over updates: against scikit-learn's PCA, quadrature and Monte Carlo; at the edges; on real first rounds."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler

from sightline.algorithms.clustered.mixture import (
    COLUMNS,
    KINDS,
    Mixture,
    candidate_counts,
    cluster_purity,
    component_overlap_at,
    confidence_by_count,
    fit_mixture,
    in_the_plane,
    plane_points,
    posterior_chances,
    principal_scores,
    raw_points,
    scale_columns,
    spanning_points,
    surest_mixture,
    switch_round,
)
from sightline.errors import InvalidInput

SIZES = (3, 6, 6, 6)
TRUTH = np.repeat(np.arange(4), SIZES)


def same_clusters(assigned, truth):
    """Whether both put the same clients together, under any names of the clusters."""
    return cluster_purity(assigned, truth) == cluster_purity(truth, assigned) == 1.0


def four_clusters(spread=0.05, parameters=500, seed=0):
    """21 updates around the corners of a slanted rectangle in a space of many parameters."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((parameters, 2)))[0].T
    corners = np.array([[0.0, 0.0], [2.0, 0.1], [0.2, 1.1], [2.1, 1.3]]) @ axes
    return corners[TRUTH] + spread * rng.standard_normal((21, parameters)) / np.sqrt(parameters)


def mixture_of(centres, radii):
    centres, radii = np.asarray(centres, float), np.asarray(radii, float)
    return Mixture(centres, centres, radii, posterior_chances(centres, centres, radii))


def test_points_equal_those_of_scikit_learn():
    updates = four_clusters(spread=0.5)
    expected = PCA(2).fit_transform(updates)
    found = principal_scores(updates)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-9)
    flipped = MinMaxScaler().fit_transform(expected * signs)
    np.testing.assert_allclose(plane_points(updates), flipped, atol=1e-9)


def test_points_are_read_in_blocks_and_do_not_depend_on_the_basis(monkeypatch):
    updates = four_clusters(spread=0.5, parameters=60)
    whole = plane_points(updates)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((60, 60)))[0]
    np.testing.assert_allclose(plane_points(updates @ rotation), whole, atol=1e-9)
    monkeypatch.setattr("sightline.algorithms.clustered.mixture.COLUMNS", 7)
    np.testing.assert_allclose(plane_points(updates), whole, atol=1e-9)
    assert COLUMNS > 7


@pytest.mark.parametrize("seed", range(5))
def test_known_and_unknown_counts_find_the_clusters(seed):
    points_of = in_the_plane(four_clusters(seed=seed))
    known, found = fit_mixture(points_of(4), 4, seed=seed), surest_mixture(points_of, clients=21, seed=seed)
    assert known.count == found.count == 4
    assert same_clusters(found.assigned.tolist(), TRUTH.tolist())
    assert found.mss == pytest.approx(max(confidence_by_count(points_of, clients=21, seed=seed).values()))
    assert found.mss > 2


def tetrahedron(spread, seed, parameters=2000):
    """Four clusters in general position, two of them nearer to each other: no plane shows all four apart."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((parameters, 4)))[0].T
    corners = np.diag([1.0, 1.6, 1.0, 1.6]) @ axes
    return corners[TRUTH] + spread * rng.standard_normal((21, parameters)) / np.sqrt(parameters)


@pytest.mark.parametrize("seed", range(5))
def test_clusters_in_general_position_need_as_many_dimensions_as_they_span(seed):
    updates = tetrahedron(0.4, seed)
    found = surest_mixture(spanning_points(updates), clients=21, seed=seed)
    assert found.points.shape[1] == found.count - 1 == 3
    assert same_clusters(found.assigned.tolist(), TRUTH.tolist())
    in_plane = fit_mixture(in_the_plane(updates)(4), 4, seed=seed)
    assert found.mss > 2 * in_plane.mss


def test_every_kind_of_points_is_there_for_every_count():
    updates = four_clusters()
    shapes = {name: [points_of(updates)(m).shape[1] for m in (1, 2, 4, 30)] for name, points_of in KINDS.items()}
    assert shapes == {"spanning": [1, 1, 3, 20], "principal": [2] * 4, "raw": [500] * 4}
    assert KINDS["spanning"](updates[:1])(2).shape == (1, 1)


def test_raw_updates_are_clustered_too():
    found = fit_mixture(raw_points(four_clusters(spread=0.01).astype(np.float32)), 4, seed=0)
    assert found.centres.shape == (4, 500)
    assert same_clusters(found.assigned.tolist(), TRUTH.tolist())


def test_the_unit_of_the_updates_does_not_matter():
    points = raw_points(four_clusters(spread=0.5))
    one, small = fit_mixture(points, 4, seed=0), fit_mixture(points / 2**30, 4, seed=0)
    assert small.mss == pytest.approx(one.mss, rel=1e-9)
    assert small.assigned.tolist() == one.assigned.tolist()


def test_equal_arguments_give_equal_bits():
    updates = four_clusters()
    one, two = (surest_mixture(spanning_points(some), clients=21, seed=3) for some in (updates, updates.copy()))
    assert one.centres.tobytes() == two.centres.tobytes()
    assert one.posteriors.tobytes() == two.posteriors.tobytes()


def test_posteriors_are_bayes_with_uniform_weights():
    rng = np.random.default_rng(0)
    points, centres, radii = rng.random((9, 2)), rng.random((3, 2)), np.array([0.1, 0.3, 0.7])
    densities = np.array(
        [[multivariate_normal(c, r**2).pdf(p) for c, r in zip(centres, radii, strict=True)] for p in points]
    )
    found = posterior_chances(points, centres, radii)
    np.testing.assert_allclose(found, densities / densities.sum(axis=1, keepdims=True), rtol=1e-10)


def test_posteriors_survive_tiny_radii_and_far_points():
    found = posterior_chances(np.array([[1e6, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([1e-3, 1e-3]))
    assert np.isfinite(found).all()
    assert found[0, 1] == 1


def test_overlap_is_the_common_mass():
    for separation in (0.2, 1.0, 2.5):
        common, _ = quad(
            lambda x, far=2 * separation: min(norm.pdf(x), norm.pdf(x - far)), -12, 20, points=[separation]
        )
        assert component_overlap_at(separation) == pytest.approx(common, abs=1e-8)


def test_separation_takes_the_larger_radius_and_the_least_pair():
    found = mixture_of([[0, 0], [4, 0], [0, 3]], [1.0, 0.5, 0.25])
    assert found.separations[0, 1] == pytest.approx(2.0)
    assert found.separations[1, 2] == pytest.approx(5.0)
    assert found.mss == pytest.approx(1.5)
    assert found.mpo == pytest.approx(2 * norm.sf(1.5))


@pytest.mark.parametrize(("mss", "last"), [(1, 68), (2, 95), (3, 99)])
def test_the_switch_round_is_the_papers(mss, last):
    assert switch_round(mixture_of([[0, 0], [2 * mss, 0]], [1, 1]), 200) == last


def test_the_switch_round_at_the_edges():
    assert switch_round(mixture_of([[0, 0], [0, 0]], [1, 1]), 200) == 0
    assert switch_round(mixture_of([[0, 0]], [1]), 200) == 100
    assert switch_round(mixture_of([[0, 0], [99, 0]], [1, 1]), 1) == 0


def test_equal_updates_are_one_cluster():
    points = plane_points(np.ones((5, 40)))
    assert points.tolist() == [[0.0, 0.0]] * 5
    for found in (fit_mixture(points, 4, seed=0), surest_mixture(spanning_points(np.ones((5, 40))), clients=5, seed=0)):
        assert found.count == 1
        assert found.posteriors.tolist() == [[1.0]] * 5
        assert (found.mss, found.mpo) == (np.inf, 0.0)


def test_updates_that_differ_by_rounding_are_one_cluster():
    same = np.ones((5, 40)) + np.finfo(float).eps * np.arange(5)[:, None]
    for kind in ("spanning", "principal"):
        assert surest_mixture(KINDS[kind](same), clients=5, seed=0).count == 1


def test_fewer_clients_than_clusters():
    updates = np.eye(3, 7)
    found = fit_mixture(plane_points(updates), 9, seed=0)
    assert found.count <= 3
    assert sorted(found.assigned.tolist()) == [0, 1, 2]
    assert fit_mixture(plane_points(updates[:1]), 4, seed=0).count == 1
    assert surest_mixture(spanning_points(updates[:2]), clients=2, seed=0).count == 2
    assert sorted(fit_mixture(spanning_points(updates)(9), 9, seed=0).assigned.tolist()) == [0, 1, 2]


def test_updates_on_a_line():
    line = np.array([0.0, 0.01, 0.02, 1.0, 1.01, 1.02])[:, None] * np.ones((1, 30))
    found = surest_mixture(spanning_points(line), clients=6, seed=0)
    assert same_clusters(found.assigned.tolist(), [0, 0, 0, 1, 1, 1])


def test_two_groups_of_equal_updates_have_a_finite_confidence():
    found = surest_mixture(spanning_points(np.repeat(np.eye(2, 9), 3, axis=0)), clients=6, seed=0)
    assert found.count == 2
    assert np.isfinite(found.mss)


def test_candidates_keep_two_clients_a_cluster():
    assert all(max(candidate_counts(clients)) <= max(2, clients // 2) for clients in range(1, 60))


@pytest.mark.parametrize("bad", [np.full((3, 2), np.nan), np.zeros((0, 2)), np.zeros(3)])
def test_what_has_no_mixture_is_one_line(bad):
    with pytest.raises(InvalidInput, match=r"updates=.*(expected one vector per client|updates must be finite)"):
        fit_mixture(bad, 2, seed=0)


def test_no_clusters_is_one_line():
    with pytest.raises(InvalidInput, match=r"topology\.count=0"):
        fit_mixture(np.zeros((3, 2)), 0, seed=0)


def test_scaled_columns_fill_the_unit_interval():
    found = scale_columns(np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]]))
    assert found.tolist() == [[0, 0], [1, 0], [0.5, 0]]


def test_purity_counts_majorities():
    assert cluster_purity([0] * 21, TRUTH.tolist()) == pytest.approx(6 / 21)
    assert cluster_purity(TRUTH.tolist(), TRUTH.tolist()) == 1
    assert cluster_purity(list(range(21)), TRUTH.tolist()) == 1
    assert not same_clusters(list(range(21)), TRUTH.tolist())
