"""The sentences of docs/reproduction/upcycled.md."""

HEAD = """# Upcycled-FL: the paper's numbers and ours

Yin et al. 2024, "Federated Learning with Reduced Information Leakage and Computation". Written by

```
python -m experiments.upcycled            # everything
python -m experiments.upcycled table3     # one part; `python -m experiments --list` shows them and what each took
```

It goes on where it was stopped: one line per run in `experiments/upcycled/results.jsonl`.

Settings: the authors' (SGD, momentum .5, batch 32, 10 local epochs, 30% of clients a round without replacement, weights
by data size; stragglers do a uniform 1 to 9 of the 10 epochs and keep what they did), 80 real rounds, upcycled with 80
free steps on top. Learning rate and u are the authors' tuned ones for FedAvg, FedAvgM and FedDyn. For FedProx, SCAFFOLD
and FedYogi we take FedAvgM's; for pFedMe learning rate .1, the best of .01, .05 and .1 on one seed. Tuning on private
data costs privacy that no ledger entry covers.

Ours: mean ± standard deviation over seeds; a seed draws new data too, so the spread contains the data's. The gain is
paired by seed; a tie is a gain within its standard error."""

CELLS_BELOW = "The cells of Tables 1, 3 and 4 have their verdicts in their own tables below."

PRIVATE_HEAD = """## Private runs

All clients, no stragglers, 80 iterations for both: 80 rounds plain, 40 rounds and 40 free steps upcycled. Unit: one
example of a client; adjacency: replace-one as published, zero-out in the others. The paper's figures print no numbers;
their claim is that upcycled has the lower loss under the smaller epsilon. Epsilon is the ledger's, at delta = 1e-5.
The loss of `output` and `objective` is on features of norm <= 1 and does not compare with that of the other two.
Figures 7 to 9 are scaled to minutes: few clients, few iterations, one seed, and mostly guessing; words have no bounded
norm, so that objective perturbation refuses tweets."""

NOT_RUN = (
    ": by name, `python -m experiments.upcycled NAME`. Letters and tweets need `SIGHTLINE_DATA` and are scaled down "
    "(`experiments/upcycled/parts.py` says how)."
)

FOOT = """## What differs, and why

- **Classes.** The text has 10 classes; the data that the authors published has 2. We use 10. That is probably why our
  Syn(iid) is lower, most of all for FedProx: mu = .5 keeps every round's step short, and 80 rounds end on the way.
- **Data per seed.** The paper keeps four data sets and repeats training; our seeds draw both: larger deviations.
- **Syn(.5,.5)** follows the generator of Li et al., whose .5 is a standard deviation: alpha = beta = .25 here.
- **FedDyn** already moves further than the mean update. With the large u that the authors tuned for it some of our runs
  seem to overshoot: its rows have the largest deviations.
- **FedYogi** is mostly worse when upcycled, with the u of FedAvgM; the authors searched for its own, we did not.
- **Privacy.** That an upcycled run halves releases and traffic, and spends less at equal noise, holds by construction
  and shows in the ledger. That it also wins at equal epsilon is not confirmed here: at epsilon = 8, 80 noisier rounds
  mostly did as well as 40 quieter ones with free steps, or better (2 seeds, one u per data set).
- **SCAFFOLD** sends one vector, not two:
  [decision 0050](../decisions/local-training.md#0050-scaffold-sends-one-vector).
- **pFedMe** is judged by the personal models, all test examples pooled, as its numbers in the paper suggest.
- **Output perturbation as published** is no guarantee: clipping a model to norm tau bounds what one example can do by
  2 tau, not tau / |D| ([why](../upcycled.md)). The epsilon in that table is that of the true sensitivity.
- **Objective perturbation** here minimises exactly, needs a proximal term and bounded features, and so runs FedProx;
  the paper ran SGD on its other algorithms too.
"""
