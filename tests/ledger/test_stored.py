"""A ledger whose past stays on disk: it says what one in memory says, and does not grow with rounds."""

import gc
import itertools
import json
import tracemalloc
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import Refused, SightlineError
from sightline.events import Adjacency, Clear, Gaussian, Poisson, Unit
from sightline.ledger import Ledger, LedgerDamaged, Release, SqliteStore, connect_to_write, parties, release_from
from sightline.ledger import ledger as ledger_module
from sightline.ledger.store import release_of
from tests.ledger.test_flow import NAMES, ledgers, release


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A folder for many small databases."""
    return iter(tmp_path_factory.mktemp("stored") / f"{number}.sqlite" for number in itertools.count())


@given(ledgers(), st.integers(1, 3), st.data())
def test_it_says_what_a_ledger_in_memory_says(room, whole, recent, data):
    held, path = ledger_module.RECENT, next(room)
    ledger_module.RECENT = recent
    rows, asked = list(whole), data.draw(st.sets(st.integers(0, len(whole))))
    cut = data.draw(st.integers(0, len(rows)))
    try:
        with closing(connect_to_write(path)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            first = Ledger.open_stored(SqliteStore(connection), participants=NAMES)
            for place, row in enumerate(rows[:cut]):
                first.append([row])
                if place in asked:
                    first.view("a")
            again = Ledger.open_stored(SqliteStore(connection), participants=NAMES)
            for grown in (first, again):
                assert list(grown) == rows[:cut]
                for observer in NAMES:
                    expected = whole.view(observer).compositions().keys()
                    assert grown.view(observer).preview_with(rows[cut:]).compositions().keys() == expected
            again.append(rows[cut:])
            assert [again[place] for place in range(-len(rows), len(rows))] == rows + rows
            for some in (set(range(0, len(rows), 2)), set(range(len(rows)))):
                assert again.frontier(some) == whole.frontier(some)
            for subject, observer in itertools.product(NAMES, NAMES):
                assert again.composition(subject, observer) == whole.composition(subject, observer)
    finally:
        ledger_module.RECENT = held


def star(time, place):
    """The two releases of a round as a star with a trusted server makes them."""
    clients, facts = parties("client-0", "client-1"), (Unit.CLIENT, Adjacency.ADD_REMOVE)
    inputs = (place - 1,) if place else ()
    handed = Release(time, "clients", clients, *facts, Clear(), parties("server"), inputs, what="updates")
    event = Poisson(0.5, Gaussian(20.0))
    return [handed, Release(time, "server", clients, *facts, event, parties("public", clients), inputs, what="mean")]


def grow(ledger, rounds):
    """Add rounds, a hundred to a transaction."""
    rows = []
    for _ in range(rounds):
        place = len(ledger) + len(rows)
        rows += star(place // 2 + 1, place)
        if len(rows) == 200:
            ledger.append(rows)
            ledger.view("public")
            rows = []


def left_by(ledger, rounds):
    """Return the bytes that `rounds` rounds leave in memory, after as many that are not counted."""
    grow(ledger, rounds)
    gc.collect()
    tracemalloc.start()
    try:
        grow(ledger, rounds)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "RECENT", 32)
    with closing(connect_to_write(tmp_path / "run.sqlite")) as connection:
        flat = left_by(Ledger.open_stored(SqliteStore(connection)), 1000)
    held = left_by(Ledger(), 1000)
    assert flat < 50_000, "of 2,000 releases no more than a few dozen may be in memory"
    assert held > 300_000, "the same rounds, all in memory: what this test must be able to see"


def test_a_past_that_was_harmed_while_the_run_went_on_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "RECENT", 2)
    with closing(connect_to_write(tmp_path / "run.sqlite")) as connection:
        ledger = Ledger.open_stored(SqliteStore(connection))
        for place in range(8):
            ledger.append([release(place, of="a", to="b")])
        connection.execute("UPDATE release SET body = replace(body, '1.0', '9.0') WHERE id = 1")
        connection.execute("DELETE FROM release WHERE id = 3")
        for place in (1, 3):
            with pytest.raises(LedgerDamaged):
                ledger[place]
        with pytest.raises(LedgerDamaged):
            ledger.view("b")
        with pytest.raises(IndexError):
            ledger[8]


def test_what_the_disk_did_not_take_is_not_in_it(tmp_path):
    with closing(connect_to_write(tmp_path / "run.sqlite")) as connection:
        ledger = Ledger.open_stored(SqliteStore(connection))
        connection.execute("PRAGMA query_only = 1")
        joint = release(1, of="a", to="b", joint="epoch 1")
        with pytest.raises(Exception, match="readonly"):
            ledger.append([joint])
        assert len(ledger) == 0
        assert not ledger.knows_joint("epoch 1")
        connection.execute("PRAGMA query_only = 0")
        ledger.append([joint])
        assert ledger.knows_joint("epoch 1")


def test_the_first_releases_of_a_ledger_may_not_differ_in_kind(tmp_path):
    mixed = [release(1, of="a", to="b"), replace(release(1, of="a", to="b"), unit=Unit.SAMPLE)]
    with pytest.raises(Refused, match="do not add up"):
        Ledger().append(mixed)
    assert len(Ledger([mixed[1]])) == 1


WORDS = st.text(alphabet='",[]{}:\\ inputscoins_known_to0123456789é\n', max_size=60)


@given(st.integers(0, 10**6), WORDS, WORDS, st.sets(st.integers(0, 99)), st.integers(100, 10**9))
def test_a_body_is_read_as_it_was_written(time, source, what, inputs, id):
    one = replace(
        release(time, of="a", to="b", inputs=tuple(sorted(inputs)), what=what + ',"inputs":[7],"coins_known_to":""'),
        source=source,
    )
    body = one.with_id(id).body()
    assert release_of(body, id) == release_from(json.loads(body), id) == one.with_id(id)


@pytest.mark.parametrize(
    "harm",
    [
        lambda body: body.replace('"time":1', '"time":-1'),
        lambda body: body.replace('"time":1', '"time":1.0'),
        lambda body: body[:-1] + ',"inputs":[0]}',
        lambda body: body[:-1] + ',"time":2}',
        lambda body: body.replace('"inputs":[]', '"inputs":[0]'),
        lambda body: body.replace(",", ", "),
    ],
)
def test_a_body_in_another_form_is_read_as_json(harm):
    plain = release(1, of="a", to="b").body()
    body = harm(plain)
    for _ in range(2):
        assert outcome(release_of, body) == outcome(lambda text, id: release_from(json.loads(text), id), body)
        release_of(plain, 3)  # now the common form is known


def outcome(read, body):
    """What a reader makes of a body: a release, or the words of its refusal."""
    try:
        return read(body, 3)
    except SightlineError as error:
        return str(error)


@pytest.mark.parametrize("inputs", ["[3]", "[5]", "[01]", "[-1]", "[1,]", '["1"', "[" + "9" * 5000 + "]"])
def test_a_malformed_body_is_refused(inputs):
    body = release(1, of="a", to="b").body().replace("[]", inputs)
    with pytest.raises(SightlineError):
        release_of(body, 3)
