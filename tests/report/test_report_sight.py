"""Who saw what of whom: few rows that lose nothing, and a matrix that equals the ledger."""

from pathlib import Path

import pytest
from report_runs import FACTS, clients, handover, per_sample, quickstart, release, write

from sightline import accounting
from sightline.apps.report import RunView
from sightline.apps.report.ledger_rows import holds_clear, tell_ledger
from sightline.apps.report.matrix import Column, epsilon_matrix
from sightline.events import Adjacency, Clear, Gaussian, Poisson, Product, Unit
from sightline.formatting import format_upper
from sightline.ledger import Release, parties


def test_rounds_become_one_row_of_each_kind(run_dir: Path) -> None:
    rows = tell_ledger(RunView.read(run_dir).ledger, Unit.CLIENT)
    assert [(row.source, row.count, row.when, row.clear) for row in rows] == [
        ("clients", 30, "1–30", True),
        ("server", 30, "1–30", False),
    ]
    assert rows[1].seen_by == "client-0..23, public"
    assert rows[1].about == "client-0..23"


def test_every_release_is_told_once(tmp_path: Path) -> None:
    run = RunView.read(per_sample(tmp_path / "run"))
    rows = tell_ledger(run.ledger, Unit.SAMPLE)
    assert sum(row.count for row in rows) == len(run.ledger)
    assert [row.source for row in rows] == ["client-0..5", "server"]
    assert rows[0].about == "each of itself"
    assert rows[0].seen_by == "server"
    assert rows[0].how == (
        "3 times: Gaussian noise, z = 1 to 1.25, each example sampled in secret with probability 0.1 to 0.15"
    )
    assert rows[1].about == "nobody"
    assert rows[1].how.startswith("nothing new")


def test_cohorts_that_change_are_one_row_with_their_sizes() -> None:
    def of(time: int, number: int) -> Release:
        return release(time, subjects=clients(number), event=Clear(), what="mean")

    rows = tell_ledger([of(1, 3), of(2, 5), of(3, 4)], Unit.NONE)
    assert [row.about for row in rows] == ["client-0..4, 3 to 5 at a time"]


def test_peers_are_told_as_peers() -> None:
    everyone = clients(4)
    sent = [release(1, source=name, subjects=parties(name), audience=everyone - {name}) for name in sorted(everyone)]
    assert [row.seen_by for row in tell_ledger(sent, Unit.CLIENT)] == ["the others"]
    ring = [
        release(1, source=f"client-{i}", subjects=parties(f"client-{i}"), audience=parties(f"client-{(i + 1) % 4}"))
        for i in range(4)
    ]
    assert [row.seen_by for row in tell_ledger(ring, Unit.CLIENT)] == ["1 of the others"]


def test_different_audiences_and_known_coins_stay_apart() -> None:
    rows = tell_ledger(
        [
            release(1),
            release(1, audience=parties("public")),
            release(1, coins_known_to=parties("server")),
            release(1, event=Gaussian(1.0)),
        ],
        Unit.CLIENT,
    )
    assert len(rows) == 4
    assert "sampling known to server" in rows[2].how


def test_clear_is_found_wherever_it_hides() -> None:
    assert holds_clear(Poisson(0.5, Clear()))
    assert holds_clear(Product((Gaussian(1.0), Clear())))
    assert not holds_clear(Poisson(0.5, Gaussian(1.0)))
    assert not holds_clear(Product(()))


def test_the_matrix_equals_the_ledger(run_dir: Path) -> None:
    run = RunView.read(run_dir)
    found = epsilon_matrix(run)
    assert found is not None
    assert [column.name for column in found.columns] == ["client-0", "public", "server"]
    assert [(subjects, word) for subjects, word, _ in found.rows] == [("client-0..23", "24 alike")]
    epsilon = run.ledger.epsilon("client-5", "public", 1e-3)
    assert [cell.text for cell in found.rows[0][2]] == [format_upper(epsilon), format_upper(epsilon), "∞"]
    assert found.rows[0][2][2].clear


def test_subjects_that_differ_have_rows_of_their_own_worst_first(tmp_path: Path) -> None:
    run = RunView.read(per_sample(tmp_path / "run", rounds=3))
    found = epsilon_matrix(run)
    assert found is not None
    assert len(found.rows) == 6
    for subject, _, cells in found.rows:
        assert cells[1].epsilon == pytest.approx(run.ledger.epsilon(subject, "public", 1e-5))
    worst = [cells[1].epsilon for _, _, cells in found.rows]
    assert worst == sorted(worst, reverse=True)
    assert run.epsilon == pytest.approx(worst[0])


def test_many_different_subjects_are_told_as_the_worst(tmp_path: Path) -> None:
    run = RunView.read(per_sample(tmp_path / "run", rounds=2, number=20))
    found = epsilon_matrix(run)
    assert found is not None
    assert len(found.rows) == 1
    assert "the worst of 20" in found.rows[0][1]
    assert found.rows[0][2][1].epsilon == run.spent["public"]
    assert run.spent["public"] >= run.ledger.worst_epsilon("public", 1e-5) * (1 - 1e-9)


def test_a_heading_counts_those_it_stands_for_and_does_not_list_them() -> None:
    many = Column("devices elsewhere", "client-0, client-20, client-40, client-60, client-80", False, 5)
    assert (many.heading, many.note, many.names) == ("devices elsewhere", "the worst of 5 different views", many.name)
    trusted = Column("trusted", "edge-1..2, edge-4..6", True, 5)
    assert (trusted.heading, trusted.note) == ("trusted", "5 of them")
    assert (Column("trusted", "server", True).heading, Column("public", "public", False).note) == (
        "server",
        "untrusted",
    )


def test_who_saw_nothing_learned_nothing(tmp_path: Path) -> None:
    facts = FACTS | {"observers": {"public": "public", "outsiders": "nobody-else"}}
    run = RunView.read(write(tmp_path / "run", facts, [], [handover(0), release(0, event=Gaussian(2.0))]))
    found = epsilon_matrix(run)
    assert found is not None
    assert [cell.text for cell in found.rows[0][2]] == [
        format_upper(accounting.epsilon({Gaussian(2.0): 1}, 1e-3)),
        "nothing",
        "∞",
    ]


def test_what_flows_through_others_counts(tmp_path: Path) -> None:
    """The public sees only what the server computed, and that carries what the client released."""
    first = release(
        1, source="client-0", subjects=parties("client-0"), event=Gaussian(3.0), audience=parties("server"), what="up"
    )
    second = release(1, subjects=frozenset(), event=Product(()), audience=parties("public"), inputs=(0,), what="model")
    facts = FACTS | {"observers": {"public": "public"}, "trusted": []}
    found = epsilon_matrix(RunView.read(write(tmp_path / "run", facts, [], [first, second])))
    assert found is not None
    assert found.rows[0][2][0].epsilon == accounting.epsilon({Gaussian(3.0): 1}, 1e-3)


def test_the_other_adjacency_is_worded_as_it_is(tmp_path: Path, page_of: type) -> None:
    made = [release(1, adjacency=Adjacency.REPLACE, event=Gaussian(9.0))]
    rows = [{"epsilon": {"public": accounting.epsilon({Gaussian(9.0): 1}, 1e-3)}, "test_accuracy": 0.5}]
    facts = FACTS | {"adjacency": "replace", "observers": {"public": "public"}}
    page = page_of.of(write(tmp_path / "run", facts, rows, made))  # type: ignore[attr-defined]
    assert "which of two sets of data any one client held" in page.text
    assert "exchanged for any other" in page.text


def test_a_plain_run_reads_back(tmp_path: Path) -> None:
    run = RunView.read(quickstart(tmp_path / "run", rounds=2))
    assert run.rounds_done == 2
    assert run.unfinished == 0
    assert run.total("uplink_floats") == 2 * 12 * 4810
