"""`sightline site`: the owner reads what it is about, agrees, and sees what is left."""

import io
import json
import re

import pytest
import tomli_w

from sightline.apps.cli.main import run_arguments
from sightline.config import parse
from sightline.runtimes.flower.export import export_shards
from tests.flower.cases import changed, privacy

PLAIN = changed(privacy=privacy("client", "client", noise_multiplier=2.0))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An experiment file and the folder of a site."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(PLAIN))
    export_shards(parse(PLAIN), tmp_path / "sites", epsilon=4.0)
    return tmp_path


def test_it_says_what_it_is_about_and_asks(desk, capsys, monkeypatch):
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: "n")
    assert run_arguments(["site", "approve", "mine.toml", "--site", "sites/site-2"]) == 1
    said, err = capsys.readouterr()
    assert err.endswith("not approved: nothing is reserved\n")
    assert "at most 4 answers of client-2" in said
    assert "epsilon 3.1" in said
    assert not list((desk / "sites/site-2/state").glob("approvals/*.json"))


def test_approved_and_seen_in_the_status(desk, capsys):
    words = ["site", "approve", "mine.toml", "--policy", "sites/site-2/site.toml", "--data", "sites/site-2/data.npz"]
    assert run_arguments([*words, "--yes", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["calls"] == 4
    assert run_arguments(["site", "status", "sites/site-2", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [one["digest"] for one in status["approvals"]] == [made["digest"]]
    assert made["epsilon"] <= status["reserved"] <= 4.0
    assert 0.5 < status["used"] < 1
    assert run_arguments(["site", "status", "sites/site-2"]) == 0
    said = capsys.readouterr().out
    used = float(re.search(r"reserved: ([\d.]+) %, which is epsilon", said)[1])
    assert 100 * status["used"] <= used < 100 * status["used"] + 0.1001
    assert f"left: {100 - used:.1f} %, room for one Gaussian experiment of epsilon" in said
    assert f"counter: {desk / 'sites' / 'site-2.counter'}" in said
    assert f"{made['approval']}  {used:.1f} %  epsilon 3.139 alone  0 of 4 calls answered, 4 left\n" in said
    assert f"  {status['approvals'][0]['experiment']} on no server known: not begun\n" in said
    assert run_arguments([*words, "--yes"]) == 3, "a second one does not fit"
    assert "epsilon=4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "law"),
    [
        ([], "give either --site or --policy"),
        (["--site", "sites/site-2", "--data", "mine.toml"], "the policy names"),
        (["--site", "sites/site-2", "--signature", "mine.toml"], "not one of known_keys"),
        (["--site", "sites/site-2", "--set", "topology.kind=clusters"], "topology.kind"),
        (["--policy", "mine.toml"], "a file named site.toml"),
    ],
)
def test_mistakes_are_one_line(desk, more, law, capsys):
    assert run_arguments(["site", "approve", "mine.toml", *more, "--yes"]) == 2
    said = capsys.readouterr().err.strip()
    assert law in said
    assert "\n" not in said


def test_revoked_and_seen_in_the_status(desk, capsys, monkeypatch):
    assert run_arguments(["site", "approve", "mine.toml", "--site", "sites/site-2", "--yes", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    revoke = ["site", "revoke", made["approval"], "--site", "sites/site-2"]
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: "n")
    assert run_arguments(revoke) == 1
    assert capsys.readouterr().err.endswith("not revoked\n")
    assert run_arguments([*revoke, "--yes"]) == 0
    assert capsys.readouterr().out == f"revoked: {made['approval']}\n"
    assert run_arguments([*revoke, "--yes"]) == 0
    assert capsys.readouterr().out == f"{made['approval']} had ended before: nothing was changed\n"
    assert run_arguments(["site", "status", "sites/site-2"]) == 0
    said = capsys.readouterr().out
    assert "0 of 4 calls answered, 0 left  revoked: nothing more is answered, its share stays reserved\n" in said
    assert " on no server known: ended\n" in said
    assert run_arguments(["site", "status", "sites/site-2", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [(one["state"], one["left"]) for one in status["approvals"]] == [("revoked", 0)]
    assert status["used"] > 0.5
    assert run_arguments(["site", "revoke", "0-1", "--site", "sites/site-2", "--yes"]) == 2
    assert capsys.readouterr().err.strip() == (
        "sightline: APPROVAL=0-1: is not approved here; sightline site status lists the approvals"
    )


def test_a_lost_file_is_one_line_at_every_command(desk, capsys):
    """Only lifetime.sqlite was lost, and its counter with it: three experiments of epsilon 4 were answered from 4.5."""
    assert run_arguments(["site", "approve", "mine.toml", "--site", "sites/site-2", "--yes"]) == 0
    for lost in [*desk.glob("sites/site-2/state/lifetime.sqlite*"), desk / "sites" / "site-2.counter"]:
        lost.unlink()
    capsys.readouterr()
    site = ["--site", "sites/site-2", "--yes"]
    for words in (
        ["status", "sites/site-2"],
        ["serve", "sites/site-2", "--socket", "s"],
        ["approve", "mine.toml", *site],
    ):
        assert run_arguments(["site", *words]) == 2
        said = capsys.readouterr().err.strip()
        assert "state=lifetime.sqlite: it holds no reservation of approval" in said
        assert said.endswith("restore the newest state/ as a whole; without it this site stays closed")
        assert "\n" not in said


def test_only_a_signature_of_a_known_key_under_this_very_experiment(desk, capsys):
    pytest.importorskip("cryptography")

    def line(*words):
        assert run_arguments(["site", *words]) == 0
        return capsys.readouterr().out.strip()

    known, _ = line("keygen", "known.key"), line("keygen", "other.key")
    assert (desk / "known.key").stat().st_mode & 0o077 == 0
    policy = desk / "sites/site-2/site.toml"
    policy.write_text(policy.read_text() + f'known_keys = ["{known}"]\nrequire_signature = true\n')
    approve = ["site", "approve", "mine.toml", "--site", "sites/site-2", "--yes"]
    assert run_arguments(approve) == 2
    assert "only signed experiments" in capsys.readouterr().err
    for name, words in {
        "stranger": ["mine.toml", "--key", "other.key"],
        "changed": ["mine.toml", "--key", "known.key", "--set", "rounds=3"],
    }.items():
        (desk / name).write_text(line("sign", *words))
        assert run_arguments([*approve, "--signature", name]) == 2
    (desk / "right").write_text(line("sign", "mine.toml", "--key", "known.key"))
    assert run_arguments([*approve, "--signature", "right"]) == 0
    assert f"signed by {known}" in capsys.readouterr().out


@pytest.mark.parametrize("stdin", [None, "at its end"])
def test_where_nothing_can_be_asked_is_one_line(stdin, desk, capsys, monkeypatch):
    """`sightline site approve ... <&-` ended in a traceback."""
    words = ["site", "approve", "mine.toml", "--site", "sites/site-2"]
    assert run_arguments([*words, "--yes", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", None if stdin is None else io.StringIO(""))
    for asks in (["site", "revoke", made["approval"], "--site", "sites/site-2"], [*words, "--set", "seed=1"]):
        assert run_arguments(asks) == 2
        assert capsys.readouterr().err.strip().endswith("stdin=closed: this command asks for confirmation; give --yes")


def test_revoke_looks_the_approval_up_before_it_asks(desk, capsys, monkeypatch):
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: pytest.fail("it asked"))
    assert run_arguments(["site", "revoke", "0-1", "--site", "sites/site-2"]) == 2
    assert "APPROVAL=0-1: is not approved here" in capsys.readouterr().err


@pytest.mark.parametrize("begun", [False, True])
def test_another_user_than_the_owner_of_the_state_is_refused(begun, desk, capsys, monkeypatch):
    """Approved as root, the files were root's, and the site answered that nothing is approved."""
    if begun:
        assert run_arguments(["site", "status", "sites/site-2"]) == 0
    monkeypatch.setattr("os.geteuid", lambda: desk.stat().st_uid + 1)
    capsys.readouterr()
    assert run_arguments(["site", "approve", "mine.toml", "--site", "sites/site-2", "--yes"]) == 2
    said = capsys.readouterr().err
    assert "belongs to another user; run this as its owner" in said
    assert said.count("\n") == 1
    assert (desk / "sites/site-2/state").exists() == begun


def test_approvals_that_cannot_be_listed_are_not_none(desk, capsys):
    (desk / "sites/site-2/state").mkdir(mode=0o700)
    (desk / "sites/site-2/state/approvals").write_text("")
    assert run_arguments(["site", "status", "sites/site-2"]) == 2
    assert "cannot be listed (NotADirectoryError)" in capsys.readouterr().err
