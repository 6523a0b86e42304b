"""Rounds of the job on Flower's simulation engine, one per line on stdin: flower_round.py small."""

import json
import sys
import time

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn

USERS, COHORT, SHAPE = 1000, 50, (1, 28, 28)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


client = ClientApp()
CACHE = {}


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    number = int(context.node_config["partition-id"])
    if number not in CACHE:
        rng = np.random.default_rng(number)
        x = torch.from_numpy(rng.standard_normal((50, *SHAPE), dtype=np.float32))
        CACHE[number] = x, torch.from_numpy(rng.integers(0, 10, 50))
    x, y = CACHE[number]
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for index in torch.randperm(50).split(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 50, "train_loss": 0.0})}
    )
    return Message(content=content, reply_to=message)


class Timed(DifferentialPrivacyServerSideFixedClipping):
    """Waits for a line before every round and says how long the round took."""

    def configure_train(self, *args, **kwargs):
        if not sys.stdin.readline():
            raise SystemExit
        self.begun = time.perf_counter()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, *args, **kwargs):
        result = super().aggregate_train(*args, **kwargs)
        print(json.dumps({"seconds": time.perf_counter() - self.begun}), flush=True)
        return result


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    inner = FedAvg(fraction_train=COHORT / USERS, fraction_evaluate=0.0, min_available_nodes=USERS)
    strategy = Timed(inner, noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=COHORT)
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net().state_dict()), train_config=ConfigRecord({}), num_rounds=10**6
    )


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=USERS, backend_config=resources)
