"""Questions about names: who has one is answered, who has none is refused; 0 is never said of a typing mistake."""

import json

import pytest
from click.testing import CliRunner

import sightline
from sightline.apps.cli.main import run_arguments
from sightline.errors import InvalidInput
from sightline.events import Adjacency, Gaussian, Poisson, Unit
from sightline.ledger import Ledger, Release, export_ledger, parties, read_export, read_parties
from sightline.ledger.release import suggest_name
from sightline.topology import Line, build_topology, participants_of
from tests.report.report_runs import quickstart

DELTA = 1e-5
CLIENTS = read_parties("client-0..99")
EVERYBODY = CLIENTS | {"public", "server"}


def release(time, subjects, audience, event=None, **more):
    event = event or Gaussian(2.0)
    return Release(
        time, "clients", parties(subjects), Unit.CLIENT, Adjacency.ADD_REMOVE, event, parties(audience), **more
    )


def told(*, registered=True):
    """Clients 0 to 9 took part; the public saw one sum, the server and client-7 another one, with coins it knows."""
    took_part = read_parties("client-0..9")
    rows = [
        release(1, took_part, {"public"}, Poisson(0.5, Gaussian(2.0)), coins_known_to=parties("server")),
        release(2, took_part, {"client-7", "server"}),
    ]
    return Ledger(rows, participants=EVERYBODY if registered else ())


QUESTIONS = {
    "epsilon": lambda ledger, subject, observer: ledger.epsilon(subject, observer, DELTA),
    "composition": lambda ledger, subject, observer: ledger.composition(subject, observer),
    "view": lambda ledger, subject, observer: ledger.view(observer).composition(subject),
    "glimpse": lambda ledger, subject, observer: ledger.passing_view(observer).compositions_of(frozenset({subject})),
}


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("question", QUESTIONS)
def test_who_has_no_name_is_refused(question, registered):
    ledger, ask = told(registered=registered), QUESTIONS[question]
    with pytest.raises(InvalidInput, match=r'^observer=publik: no participant has this name; did you mean "public"\?$'):
        ask(ledger, "client-3", "publik")
    with pytest.raises(InvalidInput, match=r'^subject=cleint-3: no participant .* did you mean "client-3"\?$'):
        ask(ledger, "cleint-3", "public")
    for stranger in ("client-999", "Client-3", "client-03", "client 3", "clients", "", "*"):
        with pytest.raises(InvalidInput, match=r"^subject="):
            ask(ledger, stranger, "public")
        with pytest.raises(InvalidInput, match=r"^observer="):
            ask(ledger, "client-3", stranger)


def test_worst_over_subjects_is_asked_of_somebody():
    ledger, planned = told(), [release(3, CLIENTS, {"outsider"})]
    room = ledger.budget_room(8.0, DELTA)
    assert ledger.worst_epsilon("public", DELTA) > 0
    for ask in (
        lambda: ledger.worst_epsilon("publik", DELTA),
        lambda: ledger.worst_epsilon("publik", DELTA, planned=planned),
        lambda: ledger.worst_of([Line("public"), Line("publik")], DELTA),
        lambda: ledger.fits_budget([Line("publik")], room),
        lambda: ledger.worst_epsilon((), DELTA),
    ):
        with pytest.raises(InvalidInput, match=r"^observer="):
            ask()
    assert ledger.worst_epsilon("outsider", DELTA, planned=planned) > 0


def test_a_client_that_never_took_part_is_a_subject():
    ledger = told()
    assert ledger.epsilon("client-3", "public", DELTA) > 0
    assert ledger.epsilon("client-42", "public", DELTA) == 0
    assert ledger.epsilon("client-3", "client-42", DELTA) == 0


def test_without_participants_the_names_in_releases_are_known():
    ledger = told(registered=False)
    assert ledger.participants == read_parties("client-0..9, public, server")
    assert ledger.epsilon("server", "client-4", DELTA) == 0
    with pytest.raises(InvalidInput, match=r"subject=client-42: .*; known: client-0\.\.9, public, server"):
        ledger.epsilon("client-42", "public", DELTA)
    ledger.append([release(3, {"client-42"}, {"auditor"})])
    assert ledger.epsilon("client-42", "auditor", DELTA) > 0


@pytest.mark.parametrize(
    "written", ["client-7,public", " public , client-7 ", ("client-7", "public"), {"client-7,public", "public"}]
)
def test_coalitions_are_read(written):
    ledger = told()
    together = ledger.epsilon("client-3", frozenset({"client-7", "public"}), DELTA)
    alone = [ledger.epsilon("client-3", name, DELTA) for name in ("client-7", "public")]
    assert together > max(alone) > 0
    assert ledger.epsilon("client-3", written, DELTA) == together


@pytest.mark.parametrize("written", ["client-7,publik", {"client-7", "publik"}, "client-90..100, public", ",", ", ,"])
def test_a_coalition_of_known_and_unknown_is_refused(written):
    with pytest.raises(InvalidInput, match=r"^observer=(publik|client-100|missing): "):
        told().epsilon("client-3", written, DELTA)


def test_subjects_are_asked_for_one_by_one():
    with pytest.raises(InvalidInput, match=r"^subject=client-3,client-4: epsilon is computed for one subject"):
        told().epsilon("client-3,client-4", "public", DELTA)


def test_participants_travel_with_the_file(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(export_ledger(told())))
    again = read_export(path)
    assert again.participants == EVERYBODY == told().scale_noise(2.0).participants
    assert again.epsilon("client-42", "public", DELTA) == 0
    plain = json.loads(path.read_text())
    del plain["participants"]  # as files once were
    path.write_text(json.dumps(plain))
    assert read_export(path).participants == read_parties("client-0..9, public, server")
    path.write_text(json.dumps(plain | {"participants": ["client-0"]}))
    with pytest.raises(InvalidInput, match=r"^participants=list"):
        read_export(path)


def command(words, capsys):
    code = run_arguments(words)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    ("subject", "observer", "way_out"),
    [
        ("client-3", "publik", 'did you mean "public"?'),
        ("client-3", "client-7,publik", 'did you mean "public"?'),
        ("cliemt-3", "public", 'did you mean "client-3"?'),
        ("client-999", "public", "known: client-0..99, public, server"),
    ],
)
def test_the_command_refuses_names_that_nobody_has(subject, observer, way_out, tmp_path, capsys):
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(export_ledger(told())))
    words = ["account", "ledger", str(path), "--delta", "1e-5", "--json"]
    code, out, err = command([*words, "--subject", subject, "--observer", observer], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert way_out in err


def test_the_command_reads_coalitions(tmp_path, capsys):
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(export_ledger(told())))
    words = ["account", "ledger", str(path), "--delta", "1e-5", "--json", "--subject", "client-3"]
    _, one, _ = command([*words, "--observer", "client-7,public"], capsys)
    _, two, _ = command([*words, "--observer", "client-7", "--observer", "public"], capsys)
    assert json.loads(one) == json.loads(two)
    assert json.loads(one)["observer"] == ["client-7", "public"]
    assert json.loads(one)["epsilon"] == told().epsilon("client-3", {"client-7", "public"}, DELTA)


def test_many_names_are_searched_in_no_time():
    known = read_parties("client-0..49999, public, server")
    assert suggest_name("publik", known) == 'did you mean "public"?'
    assert suggest_name("client-50000", known) == "known: client-0..49999, public, server"


@pytest.mark.parametrize(
    ("kind", "settings", "names"),
    [
        ("star", {}, "client-0..11, public, server"),
        ("clusters", {"count": 2}, "client-0..11, public, server"),
        ("tree", {"subnets": 3, "levels": [3, 2], "trusted": ["edge-1"]},
         "client-0..11, cloud, edge-0..2, public, region-0..1"),
        ("groups", {"structure": "ring", "groups": 3}, "client-0..11, group-0..2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["server", "client", "none"])
def test_a_topology_names_everybody_in_it(kind, settings, names, place):
    settings = {"subnets": 3, "levels": [3, 2]} if (kind, place) == ("tree", "server") else settings
    topology = build_topology(kind, settings, clients=12, place=place)
    assert participants_of(topology, 12) == read_parties(names)


def test_a_run_knows_its_clients_also_those_who_were_never_drawn(tmp_path):
    experiment = {
        "rounds": 1, "data.clients": 12, "model.name": "linear", "data.train_samples": 120,
        "privacy.unit": "client", "privacy.where": "client", "privacy.noise_multiplier": 4.0,
    }  # fmt: skip
    file = tmp_path / "few.toml"
    file.write_text("rounds = 1\n")
    words = [f"{key}={value}" for key, value in experiment.items()]
    words.append('sampling.clients={scheme = "poisson", rate = 0.3}')
    run = sightline.run(file, overrides=words, out=tmp_path / "run", progress=False)
    took_part = {name for release in run.ledger for name in release.subjects}
    absent = sorted(read_parties("client-0..11") - took_part)
    assert absent, "choose another seed: everybody was drawn"
    assert took_part, "choose another seed: nobody was drawn"
    assert run.ledger.epsilon(absent[0], "server", DELTA) == 0 < run.ledger.epsilon(min(took_part), "server", DELTA)
    with pytest.raises(InvalidInput, match=r"known: client-0\.\.11, public, server"):
        run.ledger.epsilon("client-12", "server", DELTA)


def test_a_run_of_before_knows_whom_its_facts_name(tmp_path):
    directory = quickstart(tmp_path / "old", rounds=1)
    ledger = sightline.api.Run(directory).ledger
    assert ledger.participants == read_parties("client-0..23, public, server")
    with pytest.raises(InvalidInput, match="client-24"):
        ledger.epsilon("client-24", "public", DELTA)


def test_the_help_says_how_a_coalition_is_written():
    from sightline.apps.cli.account import account_command as account

    assert "coalition" in CliRunner().invoke(account, ["ledger", "--help"]).output
