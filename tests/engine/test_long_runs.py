"""Long runs: what rounds have in common is held once, and an epsilon that was not worked out is never a smaller one."""

import sightline
from sightline.console import SINCE, RoundBar
from sightline.engine import loop


def test_what_releases_have_in_common_is_held_once(tiny, tmp_path):
    run = sightline.run(tiny(rounds=5), out=tmp_path / "run")
    published = [release for release in run.ledger if release.source == "server"]
    assert len(published) == 5
    for name in ("subjects", "event", "audience", "coins_known_to", "what"):
        assert len({id(getattr(release, name)) for release in published}) == 1


def test_rounds_without_an_epsilon_of_their_own_are_counted_all_the_same(tiny, tmp_path, monkeypatch):
    limit = {"privacy.stop_at_epsilon": 12.0, "rounds": 6}
    whole = sightline.run(tiny(**limit), out=tmp_path / "whole")
    monkeypatch.setattr(loop, "accounted_at", lambda number: number == 1)
    thin = sightline.run(tiny(**limit, evaluate_every=6), out=tmp_path / "thin")
    assert 1 < whole.summary["rounds_done"] < 6, "the budget must stop it"
    assert ["epsilon" in row for row in thin.rounds] == [True] + [False] * (len(whole.rounds) - 1)
    for key in ("epsilon", "observers", "rounds_done", "releases", "status_reason"):
        assert thin.summary[key] == whole.summary[key]
    assert thin.epsilon == whole.rounds[-1]["epsilon"]["public"] <= 12.0


def test_the_bar_says_when_its_epsilon_is_old(capsys):
    with RoundBar("x", 3) as bar:
        bar.advance({"round": 1, "epsilon": {"public": 1.0}})
        bar.advance({"round": 2})
        bar.advance({"round": 3})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("epsilon ")[1] for line in lines] == ["1.000", f"1.000{SINCE}", f"1.000{SINCE}"]
