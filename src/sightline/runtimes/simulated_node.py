"""A node that plays clients of the experiment itself: it loads their data from where the simulator would."""

import tomllib
from collections.abc import MutableMapping
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from sightline import engine
from sightline.config import parse
from sightline.engine.directory import SECRET
from sightline.errors import SightlineError
from sightline.randomness import Streams
from sightline.runtimes.asking import Task
from sightline.runtimes.desk import ClientSide
from sightline.runtimes.letter import WireMessage


def answer_simulated(letter: WireMessage, kept: MutableMapping[str, Tensor]) -> WireMessage:
    """Do what a question asks, as the client that it names; `kept` is what that client remembers.

    Guarantees: the same bits as the simulator, wherever the process is. Mistakes come back as words.
    """
    try:
        client = int(letter.words["client"])
        desk = desk_of(str(letter.words["experiment"]), letter.words.get("data"), letter.words.get("folder"))
        task = Task.read(letter, client)
        name = "" if task.memory is None else f"{task.client}/{task.memory.name}"
        if task.kept is not None:
            kept[name] = task.kept
        updates = desk.updates_for(task, kept.get(name))
        scene = desk.release_context(task)
        result = desk.compute_task(task, updates, scene, desk.mechanism(letter.words.get("noise"), scene))
    except SightlineError as error:
        return WireMessage({"refused": str(error)})
    arrays = {"value": result.value.numpy()}
    if result.kept is not None:
        kept[name] = result.kept
        arrays["kept"] = result.kept.numpy()
    return letter.reply(client, {"rejected": result.rejected}, arrays)


@lru_cache(maxsize=2)
def desk_of(experiment: str, data: str | None, folder: str | None) -> ClientSide:
    """The desk of an experiment: data are read once in every process."""
    setting = engine.build_experiment(parse(tomllib.loads(experiment)), data_root=None if data is None else Path(data))
    public = Streams.from_seed(setting.experiment.seed)
    from_os = setting.experiment.privacy.noise_source == "os" and folder is not None
    return ClientSide(setting, public, Streams.from_operating_system(Path(str(folder)) / SECRET) if from_os else public)
