"""One pfl round of the job, timed once per line on stdin: pfl_round.py small|cnn THREADS PROCESSES [bf16]."""

import json
import os
import socket
import subprocess
import sys
import time

size, threads, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
low = sys.argv[4:] == ["bf16"]
others = []
if processes > 1 and "RANK" not in os.environ:  # pfl reads torchrun's variables when it is imported
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"TORCHELASTIC_RUN_ID": "bench", "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    for rank in range(1, processes):
        environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        others.append(
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )
    os.environ.update(common | {"RANK": "0", "LOCAL_RANK": "0"})

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import nn

torch.set_num_threads(threads)
set_framework_module(pytorch_ops)
SHAPE = {"small": (1, 28, 28), "cnn": (3, 32, 32)}[size]
BODIES = {
    "small": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    ),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Linear(128, 10),
    ),
}  # fmt: skip


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = BODIES[size]()

    def loss(self, x, y, is_eval=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return nn.functional.cross_entropy(self.body(x), y)

    def metrics(self, x, y, is_eval=False):
        return {}


rng = np.random.default_rng(0)
users = {
    n: [
        torch.from_numpy(rng.standard_normal((50, *SHAPE), dtype=np.float32)),
        torch.from_numpy(rng.integers(0, 10, 50)),
    ]
    for n in range(1000)
}
data = FederatedDataset(lambda n: Dataset(users[n]), get_user_sampler("random", list(users)))
net = Net()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism])
algorithm = FederatedAveraging()
rounds = 10**6
params = NNAlgorithmParams(
    central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=50, val_cohort_size=0
)
train_params = NNTrainHyperParams(local_learning_rate=0.05, local_num_epochs=1, local_batch_size=10)
eval_params = NNEvalHyperParams(local_batch_size=50)


def one_round(number):
    contexts, _, _ = algorithm.get_next_central_contexts(model, number, params, train_params, eval_params)
    results = [
        backend.gather_results(model=model, training_algorithm=algorithm, central_context=context)
        for context in contexts
    ]
    (statistics, metrics) = results[0]
    algorithm.process_aggregated_statistics(contexts[0], metrics, model, statistics)


for number, _ in enumerate(sys.stdin, start=1):
    begun = time.perf_counter()
    for other in others:
        other.stdin.write("go\n")
        other.stdin.flush()
    one_round(number)
    print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)
