"""The sentences of papers/docs/upcycled.md."""

HEAD = """# Upcycled-FL: the paper's numbers and ours

Yin et al. 2024, "Federated Learning with Reduced Information Leakage and Computation". Written by

```
python -m papers.upcycled            # everything
python -m papers.upcycled table3     # one part; `python -m papers --list` shows them and what each took
```

An interrupted command continues: `papers/upcycled/results.jsonl` has one line per run. Letters and tweets need
`SIGHTLINE_DATA`.

Settings: the authors' (SGD, momentum .5, batch 32, 10 local epochs, 30% of clients a round without replacement,
weights by data size; stragglers do a uniform 1 to 9 of the 10 epochs and keep what they did). As in the paper a data
set is fixed and training is repeated: seeds draw cohorts, batches, stragglers, noise and the start. Of the seeds 0 to
299 each synthetic data set has the one whose sizes are nearest to Table 2. Learning rate, FedYogi's server rate and u
come from one grid for both arms (`grid`, `grid-real`: highest test accuracy at a seed that no reported run has; the
upcycled arm has two or three times as many candidates). Tuning on private data costs privacy that no ledger
entry covers.

Differences are upcycled minus plain, paired by seed, ± standard error. Tables 1, 3 and 4 and Figures 2, 5 and 6 have
no privacy in them, so that their "ours" is without noise."""

AUTHORS_HEAD = "## Three sentences for the authors"
PICTURES = """\
Pictures: Tables 1, 3 and 4 show upcycled minus plain in points of accuracy, Table 1 (level) accuracy in %, Table 2
examples, Table 5 the ratio of times; figures show upcycled minus plain in loss, where the paper prints no numbers."""
DETAIL_HEAD = "## Cell by cell"

PRIVATE_HEAD = """## Private runs

All clients, no stragglers, equally many iterations for both; upcycled has half as many rounds. Unit: one example of a
client; adjacency: replace-one as published, zero-out with a guarantee. Epsilon is the ledger's, at delta = 1e-5. The
paper's figures print no numbers; their claim is that upcycled has the lower loss under the smaller epsilon. Losses
with a guarantee are on features of norm <= 1 and do not compare with the others."""

FOOT = """## What is not the paper's

- **Syn(.5,.5)** follows the generator of Li et al., whose .5 is a standard deviation: alpha = beta = .25 here.
- **FedDyn** has its authors' gradient clip of 10, which the paper does not name and which changes nothing on
  these data sets; `clips` runs it without.
- **SCAFFOLD** sends one vector, not two:
  [SCAFFOLD sends one vector](../../docs/design-notes.md#scaffold-sends-one-vector).
- **pFedMe** is judged by the personal models, all test examples pooled.
- **Output perturbation as published** is no guarantee: clipping a model to norm tau bounds what one example can do by
  2 tau, not tau / |D| ([why](../../docs/upcycled.md)). Its epsilon in the table is that of the true sensitivity. With a
  guarantee: one epoch of convex steps, whose sensitivity is proven (`sensitivity = "convex"`), learning rate 1, no
  momentum.
- **One noise for all clients**: the paper's Theorems 6.2 and 6.3 allow every client its own alpha_i^m and epsilon_i;
  one setting holds for all clients and rounds here, because the run states one epsilon, the worst client's.
- **As coded**: the authors' code passes sigma squared where the sampler takes a standard deviation, erratum 12 of
  [What the papers get wrong](errata.md).
- **Objective perturbation** here minimises exactly and needs bounded features and a strongly convex objective: FedProx
  has its proximal term; FedAvg, FedAvgM, FedYogi, FedAdam and FedAdagrad run with `local.weight_decay`. SCAFFOLD,
  FedDyn and pFedMe add terms of their own to the objective and are refused; the paper ran SGD on all. Images are averaged over squares of pixels and words counted, so that
  the minimisation is short.
"""
