"""From words to jobs: every combination once, folders that say what they hold, mistakes where they belong."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.apps.sweep import MOST, JobStatus, folder_name, job_status, list_jobs, run_sweep, split_choices
from sightline.config import to_toml
from sightline.engine import RunRecord
from sightline.errors import InvalidInput

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.toml"


def planned(*over: str, seeds: int | None = None, given: tuple[str, ...] = (), out: Path = Path("out")) -> list:
    return list_jobs(QUICKSTART, over=over, seeds=seeds, given=given, out=out)


def test_every_combination_and_seed_is_there_once() -> None:
    found = planned("algorithm.name=fedavg,fedprox", "privacy.epsilon=2,4,8", seeds=2, given=("seed=5",))
    there = [(job.experiment.algorithm.name, job.experiment.privacy.epsilon, job.experiment.seed) for job in found]
    assert there == list(product(["fedavg", "fedprox"], [2.0, 4.0, 8.0], [5, 6]))
    assert len({job.directory for job in found}) == 12


def test_a_bad_combination_is_a_job_with_its_mistake_and_the_rest_stands() -> None:
    good, bad = planned("privacy.clip_norm=1,-1")
    assert good.experiment is not None
    assert bad.experiment is None
    assert "clip_norm=-1" in bad.mistake


def test_commas_inside_brackets_and_quotes_belong_to_the_value() -> None:
    assert split_choices("model.hidden=[64],[64, 32]") == ["model.hidden=[64]", "model.hidden=[64, 32]"]
    assert split_choices('a="x,y",z') == ['a="x,y"', "a=z"]
    assert split_choices("c={scheme='poisson',rate=0.5},{scheme='full'}") == [
        "c={scheme='poisson',rate=0.5}",
        "c={scheme='full'}",
    ]


@pytest.mark.parametrize(
    ("over", "seeds"),
    [
        (["rounds"], None),
        (["rounds="], None),
        (["rounds=1,,2"], None),
        (["rounds=1,1"], None),
        (["=3"], None),
        ([], 0),
        (["seed=1,2"], 2),
        (["rounds=" + ",".join(map(str, range(1, 102)))], 100),
        (["seed=0", "rounds=" + ",".join(map(str, range(1, MOST + 2)))], None),
    ],
)
def test_words_that_cannot_be_meant_are_refused(over: list[str], seeds: int | None) -> None:
    with pytest.raises(InvalidInput):
        planned(*over, seeds=seeds)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=3), st.lists(st.text(), max_size=3))
def test_folders_of_different_settings_differ_and_stay_in_their_place(one: list[str], other: list[str]) -> None:
    name = folder_name(one)
    assert Path("out") / name == Path("out").joinpath(*Path(name).parts)
    assert len(Path(name).parts) == 1
    assert name not in (".", "..")
    assert len(name) <= 130
    if ",".join(one) != (",".join(other) or "run"):
        assert folder_name(other) != name


def test_standing_reads_the_folder(tmp_path: Path) -> None:
    (job,) = planned(out=tmp_path)
    assert job_status(job.directory, job.experiment) is JobStatus.START
    job.directory.mkdir()
    (job.directory / "config.toml").write_text("rounds = 1\n")
    record = RunRecord.create(job.directory)
    record.remember_metadata({"status": "running"})
    assert job_status(job.directory, job.experiment) is JobStatus.START
    record._connection.execute("INSERT INTO release VALUES (0, 1, '{}', 'x')")
    assert job_status(job.directory, job.experiment) is JobStatus.TAKEN
    with pytest.raises(InvalidInput, match="holds a run of other settings"):
        run_sweep([job])
    (job.directory / "config.toml").write_text(to_toml(job.experiment))
    assert job_status(job.directory, job.experiment) is JobStatus.RESUME
    record.remember_metadata({"status": "finished"})
    record.close()
    assert job_status(job.directory, job.experiment) is JobStatus.DONE
    told: list = []
    swept = run_sweep([job], on_message=lambda job, message: told.append(message))
    assert (swept.done, swept.failed, swept.before) == ([job], [], 1)
    assert told[0]["ended"] == "done before"
