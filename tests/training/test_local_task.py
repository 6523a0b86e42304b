"""What a training call asks of its clients: one value, checked where it is made, since a server may have sent it."""

import pytest
import torch

from sightline.errors import InvalidInput
from sightline.training import LocalTask, LocalWork
from sightline.training.call import AS_PLANNED

ROWS = torch.arange(6.0).view(3, 2)


@pytest.mark.parametrize(
    "asked",
    [
        {"steps": 0}, {"steps": 2.5}, {"steps": "5"}, {"most_steps": -1}, {"repeat": 0}, {"repeat": None, "steps": []},
        {"learning_rate": 0.0}, {"learning_rate": float("nan")}, {"learning_rate": "1"}, {"step_norm": float("inf")},
        {"whole_batch": "yes"}, {"proximal": -1.0}, {"proximal": float("nan")}, {"anchor": 1.0}, {"mask": [1]},
        {"anchor": torch.ones(2)}, {"steps": True}, {"repeat": True}, {"learning_rate": True}, {"proximal": "1"},
        {"proximal": True}, {"proximal": None},
    ],
    ids=str,
)  # fmt: skip
def test_nonsense_is_one_line(asked):
    with pytest.raises(InvalidInput) as error:
        LocalTask(**asked)
    assert "\n" not in str(error.value)


def test_it_says_only_what_it_asks_otherwise():
    assert AS_PLANNED.named_fields() == {}
    task = LocalTask(steps=3, proximal=0.5, anchor=ROWS)
    assert set(task.named_fields()) == {"steps", "proximal", "anchor"}


def test_work_is_as_planned_but_for_what_is_asked():
    planned = LocalWork(0.1, momentum=0.5, batch_size=8, epochs=2)
    assert AS_PLANNED.adjust_work(planned) == planned
    found = LocalTask(steps=3, learning_rate=0.2, step_norm=1.0, whole_batch=True).adjust_work(planned)
    assert found == LocalWork(0.2, momentum=0.5, steps=3, step_norm=1.0)


def test_clients_get_their_own_rows():
    task = LocalTask(proximal=1.0, anchor=ROWS, mask=torch.ones(2))
    some, one = task.select_clients([2, 0]), task.select_clients(1)
    assert some.anchor.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert one.anchor.tolist() == [2.0, 3.0]
    assert some.mask.tolist() == one.mask.tolist() == [1.0, 1.0]


def test_the_linear_term_comes_from_one_side_only():
    assert LocalTask(linear=torch.ones(2)).add_linear(None).linear.tolist() == [1.0, 1.0]
    assert AS_PLANNED.add_linear(ROWS).linear is ROWS
    with pytest.raises(InvalidInput, match="give only one of them"):
        LocalTask(linear=torch.ones(2)).add_linear(ROWS)
