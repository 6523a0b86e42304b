"""Opacus steps of a model of own_models.py, CALLS in a row per line on stdin: opacus_own.py MODEL MODE BATCH."""

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator

sys.path.insert(0, ".")
from benchmarks.measure import in_a_row
from benchmarks.own_models import MODELS, token_batch

torch.set_num_threads(1)
name, mode, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
factory, tokens = MODELS[name]
x, y = token_batch(tokens, size)
module = ModuleValidator.fix(factory()).train()  # its own attention instead of torch's
sgd = torch.optim.SGD([one for one in module.parameters() if one.requires_grad], lr=0.01)
noise = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": size}

if mode == "ghost":
    wrapped = GradSampleModuleFastGradientClipping(
        module, batch_first=True, loss_reduction="mean", max_grad_norm=1.0, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(sgd, **noise)
    criterion = DPLossFastGradientClipping(
        wrapped, optimizer, torch.nn.CrossEntropyLoss(reduction="mean"), loss_reduction="mean"
    )
else:
    wrapped = GradSampleModule(module, batch_first=True, loss_reduction="mean", force_functorch=mode == "functorch")
    optimizer = DPOptimizer(sgd, **noise)
    criterion = torch.nn.CrossEntropyLoss()


def step() -> None:
    optimizer.zero_grad()
    criterion(wrapped(x), y).backward()
    optimizer.step()


for _ in sys.stdin:
    try:
        print(json.dumps({"seconds": in_a_row(step, clock=time.process_time)()}), flush=True)
    except Exception as error:
        print(json.dumps({"seconds": float("inf"), "error": str(error)}), flush=True)
