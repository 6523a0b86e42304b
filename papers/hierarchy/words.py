"""The fixed text of papers/docs/hierarchy.md."""

MODULE = "python -m papers.hierarchy"
DATA = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
PRINTED = {
    "fashion_mnist": "k = 200, 12-layer CNN; here k = 40, softmax regression on fixed features (M = 1,970), 3 seeds",
    "cifar10": "k = 200, 12-layer CNN; here k = 40, softmax regression on fixed features (M = 3,050), 3 seeds",
}
NOISE_IS_SMALL = "the gain is what noise takes away, and a convex segment needs little of it at epsilon 1:"
LOUD_RUN = f"with more noise it grows (Fashion-MNIST: `{MODULE} loud fig6`)"
CLIPPED = "clipped steps, epsilon 1"
CLIPPED_RUN = (
    "it grows with the noise, as of clipped steps with a guarantee for any model (Fashion-MNIST: "
    f"`{MODULE} clipped loud`)"
)
TRUE_COST = "costs epsilon {:.0f} in truth"
CONTROLLED = "control saves {} of the energy to 70% with that noise, and {} to 75% with a guarantee."
WEIGHTED = (
    "intervals of up to 40 steps use an example twice, which doubles the noise that a guarantee needs; with noise that "
    f"does not follow control saves more (`{MODULE} fig5 published`)"
)

DEVIATION = "an aggregation, and a release, after every step is a deviation from the printed five"
SEGMENTS = (
    "one example moves a clipped step by G / b, but every later step of its segment by 2 G, whatever the batch is, "
    f"because it moves the point where these are taken (`{MODULE} single clipped`)"
)
CNN_SETTING = {
    "fashion_mnist": "k = 200, 12-layer CNN; here k = 20, a CNN of two convolutions and two layers (M = 26,010) on "
    f"pixels, batches of 40; {DEVIATION}",
    "cifar10": "k = 200, 12-layer CNN; here k = 10, a CNN of two convolutions and two layers (M = 37,274) on pixels, "
    f"batches of 40; {DEVIATION}",
}
SINGLE_WORDS = """Of a segment of m clipped steps one example moves its own step by G / b and every later one by 2 G,
whatever the batch is. With m = 1 only G / b is left, so larger batches buy less noise. The paper aggregates every five
steps; every step costs five times as many messages, which the joule and seconds count. Learning rate 6, the best of 1.5, 3
and 6 on seed 100 at p_c = 1. "No noise" is without clipping in the rows of single releases."""
CNN_WORDS = """`cnn_small` (two convolutions, two layers) on pixels, 20 intervals (CIFAR-10: 10), batches of 40, G = 1, learning rate 1.5
(not tuned). Without privacy and clipping that rate diverges; HFL has its own, the better of .1 and .3 on seed 100.
p_c = 0 is run as `hfl_dp`. Every number names its seeds; single seeds have no error."""
NOT_RUN = {
    "Figure 5, CNN": "control saves energy and delay with a loss that is not convex",
    "Figure 6, CNN": "trust against epsilon with a loss that is not convex",
    "Figure 7, CNN": "larger networks with a loss that is not convex",
    "Figure 9, CNN": "accuracy by epsilon with a loss that is not convex",
}
COSTLY = "a minute or more of processor time for every point and seed; the part with the same network"
LONG_ALONE = "200 intervals were run on Fashion-MNIST alone"
UNNAMED = "the paper names no layers, and 7,840 parameters are softmax regression (erratum 17); the CNN run is"

HEAD = """# Hierarchy: what the paper says, what came out

F. P.-C. Lin, C. Brinton, *Differentially private hierarchical federated learning* (2024). Command, from the
repository's folder (`SIGHTLINE_DATA` names the folder with `fashion_mnist` and `cifar10`): `python -m
papers.hierarchy`."""

SETTING = """## How it was run

**As in the paper**: 50 devices in 10 subnets, 3 of 10 labels a device, tau = 20, a local aggregation every 5 steps,
epsilon = 1, delta = 1e-5, the wireless and wired models of appendix D. **Scaled or chosen here**: 40 intervals instead
of 200 (`long`: 200); softmax regression on fixed features instead of a 12-layer CNN whose size the paper
gives as 7,840, which is 784 x 10 and so softmax regression on pixels without bias ([erratum 17](errata.md)); a small CNN
has a table of its own below; 2,000 test images; distances of 10 to 100 m, spread evenly (the paper names none); half of the edges
trusted by name for p_c = .5. Accuracies are means over the last three of twenty evaluations (CNN: ten).

**Features** are public and need no data (`papers/hierarchy/features.py`): the image's gradient, its modulus by
four orientations averaged over 7 x 7 cells (8 x 8 and 4 x 4 cells of colour for CIFAR-10), the root of that, centred
and scaled to norm 1 image by image.

**What is protected** is a single example. A segment is a path of 5 convex, smooth steps that are not clipped
([how](../../docs/hierarchy.md#convex-segments)); noise follows from what one example can move it by, and every release counts
against every observer. What the noise of such a path depends on is the learning rate times the number of steps, not how
finely it is cut: 40 intervals at learning rate .8 (batches of 100) and 200 at .16 (batches of 20) need the same. The
learning rate was picked on a seed of its own (100).

**As published** means Proposition 3.1's noise (c2 = 2, q of a step, all aggregations) for epsilon 1 on clipped steps of
single examples (G = 1, learning rate .4): no guarantee, and the tables say what it costs in truth. **Clipped** means
the same steps with a guarantee for any model, and without noise."""

FOOT = """**Not compared**: absolute accuracies and joules, because model, number of intervals and distances differ."""
