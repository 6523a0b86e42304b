"""make_private: what a step uses, the laws of its draws and noise, the ledger before it, and what it refuses."""

import copy
import gc
import itertools
import sqlite3
import sys
import warnings
from contextlib import closing

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import sightline
from sightline import private_loop
from sightline.errors import BudgetExhausted, InvalidInput, Refused
from sightline.events import Gaussian, Poisson
from sightline.ledger import read_ledger
from tests.training.test_own_module import naive

pytestmark = pytest.mark.filterwarnings("ignore:seed=")  # simulations, all of them

N, DELTA = 40, 1e-3
X, Y = torch.randn(N, 5, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3


def network():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def private(model=None, *, data=None, batch_size=10, rate=0.0, optimizer=None, loader=None, **settings):
    """A private loop; with learning rate 0 the weights stay where they are."""
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=rate) if optimizer is None else optimizer
    loader = (
        DataLoader(TensorDataset(X, Y) if data is None else data, batch_size=batch_size) if loader is None else loader
    )
    if "noise_multiplier" not in settings and "epsilon" not in settings:
        settings["noise_multiplier"] = 1.0
    return sightline.make_private(model, optimizer, loader, **{"delta": DELTA, "seed": 3} | settings)


def gradient(model):
    return torch.cat([one.grad.flatten() for one in model.parameters()])


def walk(loop, steps):
    """Return (batch, gradient) of the first `steps` steps."""
    model, optimizer, loader = loop
    found = []
    while len(found) < steps:
        for x, y in loader:
            optimizer.step()
            found.append(((x, y), gradient(model)))
            if len(found) == steps:
                break
    return found


def noises(loop, steps, clip_norm, expected):
    """What was added to the clipped sums of each step, by the naive loop at weights that stay."""
    summed = [
        (found * expected).double()
        - torch.cat([part.flatten() for part in naive(loop.model, nn.CrossEntropyLoss(), *batch, clip_norm).values()])
        for batch, found in walk(loop, steps)
    ]
    return torch.stack(summed)


def test_a_step_is_the_clipped_sum_of_its_batch_and_noise_over_the_expected_batch():
    """Gaussian of standard deviation z C in every coordinate, whatever the size of the batch that was drawn."""
    with private(clip_norm=0.3, noise_multiplier=0.7) as loop:
        found = noises(loop, 60, 0.3, 10.0) / (0.7 * 0.3)
    assert stats.kstest(found.flatten().numpy(), "norm").pvalue > 1e-4
    assert abs(float((found**2).mean()) - 1) < 5 * np.sqrt(2 / found.numel())


def test_with_little_noise_it_is_the_clipped_sum_over_the_expected_batch():
    with private(clip_norm=0.3, noise_multiplier=1e-4) as loop:
        assert float(noises(loop, 12, 0.3, 10.0).abs().max()) < 6 * 1e-4 * 0.3


def test_a_loss_that_is_summed_is_not_divided():
    with private(clip_norm=0.3, noise_multiplier=1e-4, loss=nn.CrossEntropyLoss(reduction="sum")) as loop:
        assert float(noises(loop, 4, 0.3, 1.0).abs().max()) < 6 * 1e-4 * 0.3


def test_noise_is_fresh_in_every_step_and_never_that_of_another_loop():
    with private(seed=None) as one, private(seed=None) as other, private() as seeded, private() as again:
        rows = torch.cat([noises(loop, 20, 1.0, 10.0) for loop in (one, other, seeded)])
        expected = torch.stack([found for _, found in walk(again, 20)])
    correlations = np.corrcoef(rows.numpy())[np.triu_indices(60, 1)]
    assert np.abs(correlations).max() < 0.85  # 39 coordinates: six standard deviations
    assert len(np.unique(rows.numpy())) == rows.numel()
    model = again.model
    assert not torch.allclose(expected[0], expected[1])
    assert all(torch.isfinite(one).all() for one in model.parameters())


def test_the_same_seed_is_the_same_run():
    model = network()
    ends = []
    for _ in range(2):
        with private(copy.deepcopy(model), rate=0.5) as loop:
            walk(loop, 5)
            ends.append(copy.deepcopy(loop.model.state_dict()))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


def twins(noises_of=(1.0, 1.0), starts=(0, 0), rates=(0.0, 0.0), data=(None, None), steps=1):
    """The noise that each of two loops with one seed added in its steps, in units of its own scale."""
    found = []
    for noise, start, rate, some in zip(noises_of, starts, rates, data, strict=True):
        torch.manual_seed(start)
        with private(network(), noise_multiplier=noise, rate=rate, data=some, batch_size=N) as loop:
            model, optimizer, loader = loop
            for x, y in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
                clipped = torch.cat([one.flatten() for one in naive(model, nn.CrossEntropyLoss(), x, y, 1.0).values()])
                optimizer.step()
                added = (gradient(model).double() * N - clipped) / noise
            found.append(added.numpy())
    return found


@pytest.mark.parametrize(
    "other",
    [
        {"noises_of": (1.0, 4.0)},
        {"starts": (0, 1)},
        {"rates": (0.01, 0.5), "steps": 2},
        {"data": (TensorDataset(X, Y), TensorDataset(torch.cat([X[1:], 2 * X[:1]]), Y))},
    ],
)
def test_loops_with_one_seed_share_no_noise(other):
    """Other noise, weights, learning rate or data: the same draws, scaled, gave the sum away to 2e-5."""
    one, two = twins(**other)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.85  # 39 coordinates: six standard deviations
    assert not np.isclose(one, two, rtol=1e-2).any()


def test_loops_that_differ_in_anything_draw_other_batches():
    torch.manual_seed(0)
    model = network()
    with private(model) as one, private(model, clip_norm=2.0) as two, private(copy.deepcopy(model)) as same:
        drawn = [[loop.loader.draw(time).tolist() for time in range(1, 9)] for loop in (one, two, same)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_seed_is_warned_of():
    with pytest.warns(UserWarning, match="seed=7: noise from a seed is for simulations") as told, private(seed=7):
        pass
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private(seed=None).close()


def test_every_example_is_drawn_by_itself_at_the_claimed_rate():
    with private(batch_size=10, seed=None) as loop:
        drawn = np.zeros((2000, N))
        for time in range(2000):
            drawn[time, loop.loader.draw(time)] = 1
    rate = 10 / N
    assert loop.loader.rate == rate
    counts = drawn.sum(0)
    assert (
        stats.chisquare([counts.sum(), 2000 * N - counts.sum()], [2000 * N * rate, 2000 * N * (1 - rate)]).pvalue > 1e-7
    )
    sizes = drawn.sum(1)  # independent examples: binomial sizes, not 10 every time
    assert abs(sizes.var() / (N * rate * (1 - rate)) - 1) < 6 * np.sqrt(2 / 2000)
    between = np.corrcoef(drawn.T)[np.triu_indices(N, 1)]
    assert np.abs(between).max() < 6 / np.sqrt(2000)
    follows = np.corrcoef(drawn[:-1].flatten(), drawn[1:].flatten())[0, 1]
    assert abs(follows) < 6 / np.sqrt(2000 * N)


def test_the_batch_of_a_step_is_what_was_drawn_for_it():
    with private() as loop:
        for time, ((x, y), _) in enumerate(walk(loop, 9), 1):
            rows = loop.loader.draw(time)
            assert torch.equal(x, X[rows])
            assert torch.equal(y, Y[rows])


def test_gradients_of_the_loop_itself_are_not_used():
    """loss.backward() on anything, however large, leaves the step as it is."""
    start, ends = network(), []
    for loud in (False, True):
        with private(copy.deepcopy(start), rate=0.5) as loop:
            model, optimizer, loader = loop
            for x, y in loader:
                if loud:
                    (1e6 * nn.functional.cross_entropy(model(x), y)).backward()
                optimizer.step()
            ends.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


OPTIMIZERS = {
    "SGD": lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda some: torch.optim.Adam(some, lr=0.01),
    "AdamW": lambda some: torch.optim.AdamW(some, lr=0.01),
    "RMSprop": lambda some: torch.optim.RMSprop(some, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_steps_with_it_and_schedules_work(name):
    """The same optimiser on a twin that is given the released gradients ends at the same weights."""
    model = network()
    twin = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](twin.parameters())
    with private(model, optimizer=mine) as loop:
        schedules = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (mine, theirs)]
        for _ in range(2):
            for _ in loop.loader:
                mine.zero_grad()
                mine.step()
                for one, other in zip(model.parameters(), twin.parameters(), strict=True):
                    other.grad = one.grad.clone()
                theirs.step()
                for schedule in schedules:
                    schedule.step()
    assert mine.param_groups[0]["lr"] < OPTIMIZERS[name](network().parameters()).param_groups[0]["lr"]
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_state_of_the_optimizer_is_loaded_and_stays_private():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with private(model, optimizer=optimizer) as loop:
        walk(loop, 3)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with pytest.raises(Refused, match="without a new batch"):
            optimizer.step()


def test_frozen_parameters_have_no_gradient_even_if_they_had_one():
    model = network()
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    model[0].requires_grad_(False)
    before = copy.deepcopy(model[0].state_dict())
    with private(model, rate=0.5) as loop:
        for _ in loop.loader:
            loop.optimizer.step()
            break
    assert model[0].weight.grad is None
    torch.testing.assert_close(model[0].state_dict(), before, rtol=0, atol=0)


# the ledger


def test_epsilon_is_that_of_the_steps_and_the_budget_lasts_for_the_epochs():
    with private(epsilon=2.0, epochs=3, noise_multiplier=None) as loop:
        model, loader = loop.model, loop.loader
        assert loop.epsilon() == 0
        walk(loop, 3 * len(loader))
        event = Poisson(0.25, Gaussian(loop.noise_multiplier))
        assert loop.epsilon() == sightline.accounting.epsilon({event: 12}, DELTA) <= 2.0
        assert loop.epsilon() > 1.99
        weights = copy.deepcopy(model.state_dict())
        with pytest.raises(BudgetExhausted, match="step 13 would cost"):
            walk(loop, 1)
        torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
        assert len(loop.ledger) == 12
        assert {release.event for release in loop.ledger} == {event}
        assert loop.ledger.epsilon("samples", "public", 1e-5) == loop.epsilon(delta=1e-5)


def test_a_full_batch_hides_nobody():
    with private(batch_size=64) as loop:
        ((x, _), _), = walk(loop, 1)  # fmt: skip
        assert len(x) == N
        assert loop.ledger[0].event == Gaussian(1.0)


def test_a_step_is_on_disk_before_its_noise_exists(tmp_path, monkeypatch):
    seen = []

    def draw(size, *, rng):
        seen.append(len(read_ledger(tmp_path / "steps.sqlite")))
        return torch.zeros(size)

    monkeypatch.setattr(private_loop, "draw_gaussian", draw)
    with private(ledger=tmp_path / "steps.sqlite") as loop:
        walk(loop, 3)
    assert seen == [1, 2, 3]


def test_a_ledger_that_is_opened_again_goes_on(tmp_path):
    path, settings = tmp_path / "steps.sqlite", {"epsilon": 2.0, "epochs": 3, "noise_multiplier": None}
    with private(ledger=path, **settings) as loop:
        first, noise = walk(loop, 5), loop.noise_multiplier
    with private(ledger=path, **settings | {"epochs": 30}) as loop:
        assert loop.noise_multiplier == noise  # that of the ledger, not that of thirty epochs
        assert loop.epsilon() == sightline.accounting.epsilon({Poisson(0.25, Gaussian(noise)): 5}, DELTA)
        later = walk(loop, 7)
        with pytest.raises(BudgetExhausted):
            walk(loop, 1)
    assert not any(torch.equal(one, other) for _, one in first for _, other in later)  # same seed, other draws
    assert [release.time for release in read_ledger(path)] == list(range(1, 13))


@pytest.mark.parametrize(
    "other", [{"noise_multiplier": 2.0}, {"batch_size": 20}, {"data": TensorDataset(X[:39], Y[:39])}]
)
def test_other_steps_are_not_added_to_a_ledger(tmp_path, other):
    """A budget that is checked as one goes holds for steps that were fixed beforehand."""
    with private(ledger=tmp_path / "steps.sqlite") as loop:
        walk(loop, 1)
    with pytest.raises(Refused, match="all steps of a ledger must be equal"):
        private(ledger=tmp_path / "steps.sqlite", **other)


def test_the_ledger_of_something_else_is_left_alone(tmp_path):
    sightline.run(
        "examples/quickstart.toml", overrides=["rounds=1", "data.clients=10"], out=tmp_path / "run", progress=False
    )
    rows = len(read_ledger(tmp_path / "run" / "run.sqlite"))
    with pytest.raises(InvalidInput, match="is not a step of this kind"):
        private(ledger=tmp_path / "run" / "run.sqlite")
    assert len(read_ledger(tmp_path / "run" / "run.sqlite")) == rows


def test_a_step_that_fails_after_it_was_written_counts(tmp_path, monkeypatch):
    def fail(size, *, rng):
        raise KeyboardInterrupt

    with private(ledger=tmp_path / "steps.sqlite") as loop:
        for _ in loop.loader:
            with monkeypatch.context() as patched:
                patched.setattr(private_loop, "draw_gaussian", fail)
                with pytest.raises(KeyboardInterrupt):
                    loop.optimizer.step()
            with pytest.raises(Refused, match="without a new batch from the private loader"):
                loop.optimizer.step()
            break
        assert len(read_ledger(tmp_path / "steps.sqlite")) == 1
        walk(loop, 1)
    assert len(read_ledger(tmp_path / "steps.sqlite")) == 2


def test_two_writers_cannot_both_go_on(tmp_path):
    with private(ledger=tmp_path / "steps.sqlite") as one, private(ledger=tmp_path / "steps.sqlite") as other:
        walk(one, 1)
        with pytest.raises(sqlite3.IntegrityError):
            walk(other, 1)


def test_a_ledger_that_nobody_closes_is_closed(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_value))
    model, optimizer, loader = private(ledger=tmp_path / "steps.sqlite")
    next(iter(loader))
    optimizer.step()
    del model, optimizer, loader
    gc.collect()
    assert told == []
    with closing(sqlite3.connect(tmp_path / "steps.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM release").fetchone() == (1,)


def test_no_step_follows_a_closed_ledger(tmp_path):
    loop = private(ledger=tmp_path / "steps.sqlite")
    walk(loop, 1)
    loop.close()
    with pytest.raises(InvalidInput, match="closed"):
        walk(loop, 1)


# attacked


@pytest.mark.slow
def test_an_audit_finds_no_more_than_is_claimed_and_finds_missing_noise(monkeypatch):
    """One example at its worst against nothing, everything drawn: a test fixed beforehand, on many steps."""
    trials, delta = 200, 0.05
    worlds = {"in": torch.tensor([[5.0]]), "out": torch.tensor([[0.0]])}

    def released(x):
        model = nn.Linear(1, 1, bias=False)
        data = TensorDataset(x, torch.zeros(1, 1))
        with private(model, data=data, batch_size=1, delta=1e-3, loss=lambda o, t: (o - t).sum(), seed=None) as loop:
            return np.array([float(found) for _, found in walk(loop, trials)])

    def lower():
        yes, alarms = (int((released(worlds[name]) > 0.7).sum()) for name in ("in", "out"))
        return sightline.audit.two_worlds_lower(yes, alarms, trials, delta=delta, confidence=0.999999)

    claimed = sightline.accounting.epsilon({Gaussian(1.0): 1}, delta)
    assert lower() <= claimed
    draw = private_loop.draw_gaussian
    monkeypatch.setattr(private_loop, "draw_gaussian", lambda size, *, rng: draw(size, rng=rng) / 4)
    assert lower() > claimed


# what is refused in the loop


def test_a_batch_is_stepped_on_once_and_none_is_left_out():
    with private() as loop:
        optimizer, loader = loop.optimizer, loop.loader
        with pytest.raises(Refused, match="without a new batch"):
            optimizer.step()
        batches = iter(loader)
        next(batches)
        optimizer.step()
        with pytest.raises(Refused, match="without a new batch from the private loader"):
            optimizer.step()
        next(batches)
        with pytest.raises(Refused, match="no step was taken"):
            next(batches)
        with pytest.raises(Refused, match="no step was taken"):
            next(iter(loader))
        assert len(loop.ledger) == 1


def test_two_passes_at_once_do_not_share_a_draw():
    """The second batch of one pass and the first of another that began later were drawn for the same step."""
    with private() as loop:
        one, other = iter(loop.loader), iter(loop.loader)
        for batches in (one, other):
            next(batches)
            loop.optimizer.step()
        with pytest.raises(Refused, match="iterate over the loader once at a time"):
            next(one)
        assert len(loop.ledger) == 2


def test_a_closure_is_refused():
    with private() as loop:
        for _ in loop.loader:
            with pytest.raises(Refused, match="closure"):
                loop.optimizer.step(lambda: torch.tensor(0.0))
            loop.optimizer.step()


def test_a_batch_that_was_changed_in_place_is_refused():
    with private() as loop:
        for x, _ in loop.loader:
            x -= x.mean(0)
            with pytest.raises(Refused, match="changed in place"):
                loop.optimizer.step()
            break
        assert len(loop.ledger) == 0


def test_parameters_of_others_are_refused():
    model = network()
    other = nn.Linear(2, 2)
    with pytest.raises(Refused, match="not in the model"):
        private(model, optimizer=torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))
    with pytest.raises(InvalidInput, match=r"2\.bias: this trained parameter"):
        private(model, optimizer=torch.optim.SGD([model[0].weight, model[0].bias], lr=0.1))
    with private(model) as loop:
        for _ in loop.loader:
            loop.optimizer.add_param_group({"params": list(other.parameters())})
            with pytest.raises(Refused, match="not in the model"):
                loop.optimizer.step()
            break


def test_an_optimizer_is_made_private_once():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with private(model, optimizer=optimizer), pytest.raises(Refused, match="already private"):
        private(model, optimizer=optimizer)


def test_batch_normalisation_is_refused():
    with pytest.raises(Refused, match="GroupNorm"):
        private(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta": 0.1}, r"at random would meet it; use at most 0\.0025$"),
        ({"epsilon": 2.0, "noise_multiplier": None}, "give epochs"),
        ({"noise_multiplier": None}, "give epsilon and epochs"),
        ({"noise_multiplier": 0.0}, "noise must be positive"),
        ({"noise_multiplier": float("nan")}, "noise must be positive"),
        ({"epsilon": -1.0, "epochs": 3, "noise_multiplier": None}, "a budget must be positive"),
        ({"epochs": 1.5}, "whole number"),
        ({"clip_norm": float("inf")}, "clip_norm=inf: must be"),
    ],
)
def test_settings_that_promise_nothing_are_told(settings, message):
    with pytest.raises(InvalidInput, match=message):
        private(**settings)


# loaders


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Doubling(DataLoader):
    def __iter__(self):
        return ((2 * x, y) for x, y in super().__iter__())


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: Doubling(data, batch_size=10),
        lambda data: DataLoader(data, sampler=WeightedRandomSampler([1.0] * N, N), batch_size=10),
        lambda data: DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 10, False)),
        lambda data: DataLoader(Stream(), batch_size=10),
        lambda data: DataLoader(data, batch_size=64, drop_last=True),
        lambda data: [(X, Y)],
    ],
)
def test_loaders_whose_draws_would_be_lost_are_refused(loader):
    with pytest.raises(InvalidInput, match="loader"):
        private(loader=loader(TensorDataset(X, Y)))


class Pairs(Dataset):
    """A data set of which nothing is known."""

    def __len__(self):
        return N

    def __getitem__(self, number):
        return X[number], int(Y[number])


def mixup(examples):
    """A collation that mixes the examples of its batch."""
    x, y = zip(*examples, strict=True)
    x = torch.stack(x)
    return x / 2 + x.mean(0) / 2, torch.tensor(y)


@pytest.mark.parametrize("collate", [None, mixup])
def test_examples_are_collated_alone(collate):
    with private(loader=DataLoader(Pairs(), batch_size=10, shuffle=True, collate_fn=collate)) as loop:
        for time, ((x, y), _) in enumerate(walk(loop, 4), 1):
            rows = loop.loader.draw(time)
            torch.testing.assert_close(x, X[rows])
            assert torch.equal(y, Y[rows])


def views_of(count):
    """A collation that makes rows of every example: moved copies, `count` of them or as many as `count(example)`."""

    def collate(examples):
        many = [count(x) if callable(count) else count for x, _ in examples]
        x = [scale * x for (x, _), rows in zip(examples, many, strict=True) for scale in 1 + torch.arange(rows) / 10]
        return torch.stack(x) if x else torch.empty(0, 5), torch.tensor(
            [(y + row) % 3 for (_, y), rows in zip(examples, many, strict=True) for row in range(rows)],
            dtype=torch.int64,
        )

    return collate


def uneven(x):
    """Between no row and three."""
    return int(4 * torch.sigmoid(3 * x[0]))


class Gate(nn.Module):
    """A user's module that is certified; with a branch on values it is not, and torch.func cannot trace it."""

    def __init__(self, branch=False):
        super().__init__()
        self.body, self.branch = nn.Linear(5, 3), branch

    def forward(self, x):
        x = self.body(torch.sigmoid(x) * x)
        return 2 * x if self.branch and float(x.detach().sum()) > 0 else x


PATHS = {
    "chain": (network, None),
    "graph": (Gate, None),
    "own loss, side by side": (network, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)),
    "own loss, summed": (network, nn.CrossEntropyLoss(reduction="sum")),
    "one by one": (lambda: Gate(branch=True), nn.CrossEntropyLoss(label_smoothing=0.1)),
}


@pytest.mark.parametrize("path", PATHS)
def test_all_rows_of_an_example_are_clipped_together(path):
    """Rows that were clipped by themselves moved the sum by 1.86, 4.17 and 16.5 C for 2, 5 and 20 rows, claimed 1 C."""
    model = PATHS[path][0]()
    for count in (2, 5, 20, uneven):
        check_rows(model, PATHS[path][1], count)


def check_rows(model, loss, count, clip_norm=0.02):
    data, collate = Pairs(), views_of(count)
    plain = loss or nn.functional.cross_entropy
    loader = DataLoader(data, batch_size=20, collate_fn=collate)
    with private(model, loader=loader, clip_norm=clip_norm, noise_multiplier=1e-5, loss=loss) as loop:
        for time, ((x, y), found) in enumerate(walk(loop, 2), 1):
            rows = loop.loader.draw(time)
            alone = [collate([data[int(number)]]) for number in rows]
            assert torch.equal(x, torch.cat([one for one, _ in alone]))  # no row is cut, none pushed out
            assert torch.equal(y, torch.cat([one for _, one in alone]))
            each = [naive_rows(model, plain, *one, clip_norm) for one in alone if len(one[0])]
            assert max(float(one.norm()) for one in each) > 0.9 * clip_norm
            expected = sum(each) / (1 if getattr(loss, "reduction", "mean") == "sum" else 20)
            assert float((found.double() - expected).norm()) < 1e-3 * clip_norm


def naive_rows(model, loss, x, y, clip_norm):
    """The clipped gradient of one example that has these rows."""
    found = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    flat = torch.cat([part.flatten() for part in found]).double()
    return flat * min(1.0, clip_norm / float(flat.norm()))


def test_rows_without_a_target_each_are_told():
    def crops(examples):
        return torch.cat([torch.stack([x, -x]) for x, _ in examples]), torch.tensor([y for _, y in examples])

    with (
        private(loader=DataLoader(Pairs(), batch_size=10, collate_fn=crops)) as loop,
        pytest.raises(InvalidInput, match="crops: an example, collated alone, has a different number of rows"),
    ):
        next(iter(loop.loader))


def test_an_example_of_another_type_does_not_change_the_others():
    def doubled(examples):
        x, y = torch.stack([x for x, _ in examples]), torch.tensor([y for _, y in examples])
        return (x.double() if y[0] == 1 else x), y

    with (
        private(loader=DataLoader(Pairs(), batch_size=40, collate_fn=doubled)) as loop,
        pytest.raises(InvalidInput, match="different number types"),
    ):
        next(iter(loop.loader))


def test_a_subset_is_the_data():
    with private(data=Subset(TensorDataset(X, Y), range(20)), batch_size=5) as loop:
        assert loop.loader.rate == 0.25
        assert all(any(torch.equal(row, known) for known in X[:20]) for (x, _), _ in walk(loop, 4) for row in x)


@pytest.mark.parametrize("data", [TensorDataset(X[:4], Y[:4]), Subset(Pairs(), range(4))])
def test_an_empty_batch_is_a_step_of_noise(data):
    with private(data=data, batch_size=1) as loop:
        sizes = [len(x) for (x, _), found in walk(loop, 12) if bool(found.any())]
    assert 0 in sizes
    assert len(sizes) == 12


class Ragged(Pairs):
    def __getitem__(self, number):
        return X[number, : 1 + number % 5], int(Y[number])


def test_examples_of_several_lengths_are_told():
    with private(data=Ragged(), batch_size=N) as loop, pytest.raises(InvalidInput, match="pad to one length"):
        next(iter(loop.loader))


class Growing(Pairs):
    count = N

    def __len__(self):
        return self.count


def test_a_data_set_that_has_grown_is_refused():
    data = Growing()
    with private(data=data) as loop:
        data.count = N + 1
        with pytest.raises(Refused, match="40 examples"):
            next(iter(loop.loader))


@pytest.mark.slow
def test_batches_of_worker_processes_are_the_same():
    model, found = network(), []
    for workers in (0, 2):
        with private(model, loader=DataLoader(Pairs(), batch_size=10, num_workers=workers)) as loop:
            found.append([gradient for _, gradient in walk(loop, 4)])
    torch.testing.assert_close(found[0], found[1])


def test_another_loss_is_what_is_differentiated():
    data = TensorDataset(X, X[:, :2].clone())
    model = nn.Sequential(nn.Linear(5, 2))
    with private(model, data=data, noise_multiplier=1e-4, clip_norm=0.3, loss=nn.MSELoss()) as loop:
        for batch, found in walk(loop, 3):
            summed = naive(model, nn.MSELoss(), *batch, 0.3)
            expected = torch.cat([part.flatten() for part in summed.values()]) / 10
            torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


class Answer:
    """What models of Hugging Face return: an object with logits, among other things."""

    def __init__(self, logits):
        self.logits, self.loss = logits, logits.sum()


class ByName(nn.Module):
    """A module of keywords: two parts of different shapes, one label per example."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, *, grid, weight):
        return Answer(self.second(torch.tanh(self.first(grid.mean(1) * weight[:, None]))))


class Records(Dataset):
    grid, weight = torch.randn(N, 2, 3, generator=torch.Generator().manual_seed(1)), torch.arange(N) / N
    extra: dict = {}  # noqa: RUF012

    def __len__(self):
        return N

    def __getitem__(self, number):
        return {"weight": self.weight[number], "labels": Y[number], "grid": self.grid[number]} | self.extra


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_batches_may_be_dictionaries(loss):
    model, clip = ByName(), 0.05
    names = list(model.state_dict())
    with private(model, data=Records(), batch_size=N, noise_multiplier=1e-9, clip_norm=clip, loss=loss) as loop:
        (batch,) = loop.loader
        assert set(batch) == {"weight", "labels", "grid"}
        loop.optimizer.step()
    expected = torch.zeros_like(gradient(model))
    for row in range(N):  # by definition: one example at a time through the user's own module
        one = {name: batch[name][row : row + 1] for name in ("grid", "weight")}
        value = (loss or nn.CrossEntropyLoss())(model(**one).logits, batch["labels"][row : row + 1])
        apart = torch.cat([part.flatten() for part in torch.autograd.grad(value, list(model.parameters()))])
        expected += apart * min(1.0, clip / float(apart.norm()))
    torch.testing.assert_close(gradient(model), expected / N, rtol=1e-4, atol=1e-7)
    assert list(model.state_dict()) == names
    x = {name: batch[name] for name in ("grid", "weight")}
    summed = sightline.clipped_gradient(model, loss, x, batch["labels"], clip)
    torch.testing.assert_close(torch.cat([summed[name].flatten() for name in names]), expected, rtol=1e-4, atol=1e-6)


def lengths(number):
    return torch.ones(1 + number % 3)


BAD_RECORDS = {
    "text": ({"text": "a scan"}, r"batch\['text'\] is a list, not a tensor .*remove it"),
    "lists": ({"tokens": [1, 2]}, r"batch\['tokens'\] is a list, not a tensor .*set_format"),
    "two labels": ({"y": Y[0]}, "2 keys could be"),
    "types": ({"ids": torch.ones(3, dtype=torch.int64)}, "all of them whole numbers or all float32"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_what_no_dictionary_may_hold_is_named(case):
    data = Records()
    data.extra, words = BAD_RECORDS[case]
    with private(ByName(), data=data, batch_size=N) as loop, pytest.raises(InvalidInput, match=words):
        next(iter(loop.loader))


def test_padding_is_named_with_the_part_that_lacks_it():
    class Lengths(Records):
        def __getitem__(self, number):
            return super().__getitem__(number) | {"tokens": lengths(number)}

    with (
        private(ByName(), data=Lengths(), batch_size=N) as loop,
        pytest.raises(InvalidInput, match=r"batch\['tokens'\] .* pad to one length in the data set, e.g. tokenizer"),
    ):
        next(iter(loop.loader))
