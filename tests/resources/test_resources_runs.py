"""Energy and delay of whole runs: against a loop over devices, on every topology, resumed, and in the report."""

import json

import pytest

import sightline
from sightline.config import parse, to_toml
from sightline.engine import RunRecord, loop
from tests.commands import command
from tests.engine.conftest import TINY, changed

WIRELESS = {"model": "wireless"}
STAR = changed(TINY, {"resources": WIRELESS})
GROUPS = changed(
    STAR,
    {"topology": {"kind": "groups", "structure": "ring", "groups": 3, "period": 2}, "algorithm": {"name": "dp_ogl"},
     "data.clients": 9},
)  # fmt: skip


def run(plain, path, **changes):
    return sightline.run(parse(changed(plain, changes)), out=path)


def naive(experiment, channels, *, rate, rounds):
    """The mean cost by a loop over devices, sorted from the slowest: each is the slowest if none before it is drawn."""
    from sightline.resources import build_resources

    parameters = 5 * 3 + 3
    air = build_resources(experiment, parameters=parameters).prices
    energy = delay = 0.0
    for number in range(1, rounds + 1):
        now = air.sending(round=number, use=0)
        free = 1.0
        for _, device in sorted(((now.delay_seconds[d], d) for group in channels for d in group), reverse=True):
            energy += rate * now.energy_joule[device]
            delay += free * rate * now.delay_seconds[device]
            free *= 1 - rate
    return energy, delay


def test_a_star_costs_what_a_loop_over_its_devices_says(tmp_path):
    done = run(STAR, tmp_path / "run")
    energy, delay = naive(parse(STAR), [range(6)], rate=0.6, rounds=4)
    assert done.summary["energy_joule"] == pytest.approx(energy, rel=1e-12)
    assert done.summary["delay_seconds"] == pytest.approx(delay, rel=1e-12)
    assert sum(row["energy_joule"] for row in done.rounds) == done.summary["energy_joule"]


def test_groups_gather_side_by_side(tmp_path):
    done = run(GROUPS, tmp_path / "run")
    groups = [channel.members for channel in sightline.engine.build_experiment(parse(GROUPS)).topology.channels]
    energy, delay = naive(parse(GROUPS), groups, rate=0.6, rounds=4)
    assert done.summary["energy_joule"] == pytest.approx(energy, rel=1e-12)
    assert done.summary["delay_seconds"] == pytest.approx(delay, rel=1e-12)


def test_free_steps_cost_nothing_and_without_a_model_nothing_is_said(tmp_path):
    plain = run(STAR, tmp_path / "plain")
    free = run(STAR, tmp_path / "free", **{"algorithm": {"name": "fedavg", "upcycle": 0.5}})
    silent = run(STAR, tmp_path / "silent", resources=None)
    assert free.summary["energy_joule"] == plain.summary["energy_joule"]
    assert "energy_joule" not in silent.summary
    assert "energy_joule" not in silent.rounds[0]
    assert "Energy and delay" not in silent.report.read_text()


def test_costs_do_not_tell_who_took_part(tmp_path):
    """Other coins, other cohorts, the same air: not a bit of the costs moves. Also in rounds with nobody in them."""
    quiet = {"sampling.clients": {"scheme": "poisson", "rate": 0.05}, "privacy.noise_source": "os"}
    first, second = (run(STAR, tmp_path / name, **quiet) for name in ("first", "second"))
    costs = [[(row["energy_joule"], row["delay_seconds"]) for row in done.rounds] for done in (first, second)]
    assert costs[0] == costs[1]
    assert (first.directory / "model.safetensors").read_bytes() != (second.directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize("changes", [{"privacy.where": "client"}, {"privacy": {"unit": "none"}},
                                     {"algorithm.name": "local", "privacy.unit": "sample"}])  # fmt: skip
def test_every_way_to_release_is_charged(tmp_path, changes):
    done = run(STAR, tmp_path / "run", **changes)
    assert all(row["energy_joule"] > 0 and row["delay_seconds"] > 0 for row in done.rounds)


def test_a_resumed_run_counts_the_same_costs(tmp_path, monkeypatch):
    whole = run(STAR, tmp_path / "whole")

    def crash(*args, **kwargs):
        save(*args, **kwargs)
        raise KeyboardInterrupt

    save = loop.save_checkpoint
    monkeypatch.setattr(loop, "save_checkpoint", crash)
    with pytest.raises(KeyboardInterrupt):
        run(STAR, tmp_path / "broken")
    monkeypatch.undo()
    resumed = sightline.run(parse(STAR), out=tmp_path / "broken", resume=True)
    assert [row["energy_joule"] for row in resumed.rounds] == [row["energy_joule"] for row in whole.rounds]
    assert resumed.summary["delay_seconds"] == whole.summary["delay_seconds"]


def test_the_report_and_the_command_line_tell_the_costs(tmp_path):
    (tmp_path / "star.toml").write_text(to_toml(parse(STAR)))
    done = command("run", "star.toml", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " J, " in done.stdout
    record = RunRecord.open(tmp_path / "run")
    total = sum(row["energy_joule"] for row in record.rounds())
    record.close()
    page = (tmp_path / "run" / "report.html").read_text()
    for words in ("Energy and delay", "Energy of a round", "Delay of a round", "Accuracy for the energy spent"):
        assert words in page
    assert f"{total:.3g}"[:4] in page
    bad = command("run", "star.toml", "--json", "--set", "resources.model=teleport", cwd=tmp_path)
    assert bad.returncode == 2
    assert bad.stderr.startswith("sightline: resources.model=teleport")
    assert len(bad.stderr.splitlines()) == 1


def test_the_json_ends_with_energy_and_delay(tmp_path):
    summary = run(STAR, tmp_path / "run").summary
    assert json.loads(json.dumps(summary))["energy_joule"] > 0


TREE = changed(
    STAR,
    {"topology": {"kind": "tree", "subnets": 3, "trusted": ["edge-0"]}, "local": {"steps": 4, "learning_rate": 0.1},
     "sampling.clients": {"scheme": "full"}},
)  # fmt: skip


def up_and_down(experiment, *, gatherings, levels, rounds=4):
    """Everybody sends in every gathering, the slowest is waited for; then every server sends up, level by level."""
    from sightline.resources import build_resources

    air = build_resources(experiment, parameters=5 * 3 + 3).prices
    wire = air.wired("edge-0", round=1)
    energy = delay = 0.0
    for number in range(1, rounds + 1):
        for use in range(gatherings):
            now = air.sending(round=number, use=use)
            energy += sum(now.energy_joule)
            delay += max(now.delay_seconds)
        energy += sum(levels) * wire.energy_joule
        delay += len(levels) * wire.delay_seconds
    return energy, delay


@pytest.mark.parametrize(
    ("changes", "gatherings", "levels"),
    [
        ({"algorithm": {"name": "h2fdp", "local_aggregation": 2}}, 2, [3]),
        ({"algorithm": {"name": "h2fdp", "local_aggregation": 4}}, 1, [3]),
        ({"algorithm": {"name": "fedavg"}}, 1, [3]),
        ({"algorithm": {"name": "fedavg", "upcycle": 0.5}}, 1, [3]),
        ({"topology.trusted": 1.0, "privacy.where": "server"}, 1, [3]),
        ({"topology": {"kind": "tree", "levels": [4, 2], "trusted": 1.0}}, 1, [4, 2]),
        ({"algorithm": {"name": "hfl", "local_aggregation": 2}, "privacy": {"unit": "none"}}, 2, [3]),
    ],
)
def test_a_tree_pays_for_every_leg(tmp_path, changes, gatherings, levels):
    done = run(TREE, tmp_path / "run", **changes)
    energy, delay = up_and_down(parse(changed(TREE, changes)), gatherings=gatherings, levels=levels)
    assert done.summary["energy_joule"] == pytest.approx(energy, rel=1e-12)
    assert done.summary["delay_seconds"] == pytest.approx(delay, rel=1e-12)
