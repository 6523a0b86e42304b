import json
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import InvalidInput
from sightline.events import Adjacency, Gaussian, Poisson, Unit
from sightline.ledger import (
    GENESIS,
    Ledger,
    LedgerDamaged,
    Release,
    SqliteStore,
    connect_to_write,
    export_ledger,
    parties,
    read_export,
    read_parties,
    write_parties,
)


def rows(count):
    event = Poisson(0.5, Gaussian(1.5))
    return [
        Release(t, "server", parties("client-0", "client-1"), Unit.CLIENT, Adjacency.ADD_REMOVE, event, parties("public"),
                inputs=(t - 1,) if t else (), what="noisy <mean>")
        for t in range(count)
    ]  # fmt: skip


@pytest.fixture
def database(tmp_path):
    connection = connect_to_write(tmp_path / "run.sqlite")
    ledger = Ledger(store=SqliteStore(connection))
    for row in rows(5):
        ledger.append([row])
    yield connection
    connection.close()


def test_it_is_durable_by_its_settings(database):
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_what_is_read_is_what_was_written(database):
    assert SqliteStore(database).read() == list(Ledger(rows(5)))


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM release WHERE id = 2",
        "UPDATE release SET body = replace(body, '1.5', '9.5') WHERE id = 3",
        "UPDATE release SET hash = (SELECT hash FROM release WHERE id = 1) WHERE id = 2",
        "UPDATE release SET id = id + 1 WHERE id = 4",
        "INSERT INTO release SELECT 5, time, body, hash FROM release WHERE id = 4",
    ],
)
def test_a_harmed_chain_is_noticed(database, harm):
    database.execute(harm)
    with pytest.raises(LedgerDamaged):
        SqliteStore(database).read()


def test_a_cut_tail_does_not_match_the_remembered_head(database):
    store = SqliteStore(database)
    head = store.head()
    assert store.vouches_for(5, head)
    assert store.vouches_for(0, GENESIS)
    database.execute("DELETE FROM release WHERE id = 4")
    assert store.read() == list(Ledger(rows(4)))
    assert not store.vouches_for(5, head)


def test_a_failed_transaction_leaves_nothing(database):
    store = SqliteStore(database)
    good, bad = Ledger(rows(7))[5], Ledger(rows(5))[4]
    with pytest.raises(sqlite3.IntegrityError):
        store.append([good, bad])
    assert len(store.read()) == 5


def test_releases_survive_a_killed_process(tmp_path):
    script = (
        "import os, sys; from tests.ledger.test_store import *; from pathlib import Path\n"
        "ledger = Ledger(store=SqliteStore(connect_to_write(Path(sys.argv[1]))))\n"
        "ledger.append(rows(3)); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run.sqlite")], capture_output=True)
    assert done.returncode == -9, done.stderr
    connection = connect_to_write(tmp_path / "run.sqlite")
    assert len(SqliteStore(connection).read()) == 3
    connection.close()


def test_an_export_is_accounted_from_the_file_alone(tmp_path):
    ledger = Ledger(rows(5))
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(export_ledger(ledger)))
    again = read_export(path)
    assert list(again) == list(ledger)
    assert again.epsilon("client-1", "public", 1e-5) == ledger.epsilon("client-1", "public", 1e-5)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": "other", "releases": []}', '{"schema": "sightline-ledger/1", "releases": [{}]}',
     '{"schema": "sightline-ledger/1", "releases": [3]}', "{" * 10_000],
)  # fmt: skip
def test_a_strange_export_is_refused(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        read_export(path)


names = st.one_of(
    st.builds("client-{}".format, st.integers(0, 300)), st.sampled_from(["server", "public", "edge-01", "x-y-3"])
)


@given(st.frozensets(names))
def test_written_parties_are_read_back(some):
    assert read_parties(write_parties(some)) == some


def test_written_parties_are_short():
    assert write_parties(parties(f"client-{n}" for n in range(1000))) == "client-0..999"


def test_the_published_schema_says_what_is_exported():
    from dataclasses import fields
    from pathlib import Path

    from sightline.events import Event
    from sightline.ledger import SCHEMA

    schema = json.loads((Path(__file__).parents[2] / "docs" / "ledger.schema.json").read_text())
    exported = export_ledger(Ledger(rows(1)))
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert set(schema["$defs"]["release"]["required"]) == set(exported["releases"][0])
    described = {
        one["properties"]["kind"]["const"]: set(one["properties"]) for one in schema["$defs"]["event"]["oneOf"]
    }
    assert described == {kind: {"kind", *(f.name for f in fields(cls))} for kind, cls in Event.registry.items()}
