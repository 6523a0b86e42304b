"""Opacus steps on a fixed batch, CALLS in a row per line on stdin: opacus_step.py cnn|mlp MODE BATCH."""

import json
import sys
import warnings

warnings.filterwarnings("ignore")

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

sys.path.insert(0, ".")
from benchmarks.measure import in_a_row
from benchmarks.plain import cnn, mlp

torch.set_num_threads(1)
name, mode, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(size)
x, y = torch.randn(size, 1, 28, 28), torch.randint(0, 10, (size,))
module = {"cnn": cnn, "mlp": mlp}[name]()
sgd = torch.optim.SGD(module.parameters(), lr=0.01)
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
    if mode == "hooks":
        wrapped = GradSampleModule(module, batch_first=True, loss_reduction="mean")
    elif mode == "functorch":
        wrapped = GradSampleModule(module, batch_first=True, loss_reduction="mean", force_functorch=True)
    else:
        from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights

        wrapped = GradSampleModuleExpandedWeights(module, batch_first=True, loss_reduction="mean")
    optimizer = DPOptimizer(sgd, **noise)
    criterion = torch.nn.CrossEntropyLoss()


def step() -> None:
    optimizer.zero_grad()
    criterion(wrapped(x), y).backward()
    optimizer.step()


for _ in sys.stdin:
    try:
        print(json.dumps({"seconds": in_a_row(step)()}), flush=True)
    except Exception as error:
        print(json.dumps({"seconds": float("inf"), "error": str(error)}), flush=True)
