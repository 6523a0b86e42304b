"""Per-example norms must not be fooled by positions whose contributions cancel in float32."""

import pytest
import torch

from sightline.training.clipping import clip_factors
from sightline.training.fast.per_example_norms import AffineNorms


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e3, 1e4, 1e5])
def test_cancelling_positions_stay_inside_the_ball(offset):
    torch.manual_seed(0)
    positions, inputs, outputs, clip_norm = 16, 400, 200, 1.0
    a = offset + torch.randn(8, positions, inputs)
    g = torch.randn(8, positions, outputs)
    g -= g.mean(1, keepdim=True)
    book = AffineNorms(a, g, bias=False)
    norms = (book.gram_norms()).sqrt()
    factors = clip_factors(norms, clip_norm)
    exact = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
    assert (factors.double() * exact <= clip_norm).all()
