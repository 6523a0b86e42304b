"""Experiments that give every setting that has a word of its own, so that each can be given a wrong one."""

HEAD = """rounds = 3
evaluate_every = 2
[data]
source = "synthetic"
clients = 6
partition = "natural"
features = 8
classes = 3
alpha = 0.5
beta = 0.5
size_min = 12
test_fraction = 0.3
[local]
steps = 4
batch_size = 4
learning_rate = 0.1
momentum = 0.5
weight_decay = 0.01
"""
CLIENT = """[privacy]
unit = "client"
mechanism = "gaussian"
clip_norm = 0.5
noise_multiplier = 1.0
delta = 1e-3
adjacency = "add_remove"
noise_source = "seed"
accountant = "pld"
stop_at_epsilon = 50.0
"""
FULL = (
    HEAD + CLIENT + """where = "server"
arithmetic = "integer"
[model]
name = "mlp"
hidden = [5]
activation = "tanh"
dropout = 0.1
[sampling]
clients = {scheme = "balanced", uses = 2}
[algorithm]
name = "fedavg"
upcycle = {mu = 0.5, lambda = 0.5, growth = 0.5}
[resources]
model = "wireless"
delays = "sum"
bandwidth_hertz = 1e6
distance_metre = [10.0, 100.0]
fading = true
""",
    HEAD.replace("momentum = 0.5", "momentum = 0.0") + CLIENT + """where = "edge"
[model]
name = "linear"
[topology]
kind = "tree"
subnets = [2, 1, 3]
trusted = ["edge-0", "edge-1"]
[algorithm]
name = "h2fdp"
local_aggregation = 2
schedule = "constant"
control = {energy = 1.0, delay = 1.0, accuracy = 1.0, tau_max = 8, smoothness = 1.0}
[resources]
model = "wireless"
""",
    HEAD + CLIENT + """[topology]
kind = "groups"
structure = "ring"
groups = 3
period = 2
rates = [0.5, 0.5, 0.5]
noise_factors = [1.0, 1.0, 2.0]
clip_factors = [1.0, 1.0, 1.0]
[algorithm]
name = "dp_ogl"
[sampling]
clients = {scheme = "poisson", rate = 0.5}
""",
    HEAD + CLIENT + """[algorithm]
name = "fedavg"
[algorithm.split]
parts = 2
[sampling]
clients = {scheme = "fixed", rate = 0.5}
""",
    HEAD.replace("steps = 4", "epochs = 1") + """[privacy]
unit = "sample"
noise_multiplier = 1.0
clip_norm = 0.5
delta = 1e-3
[topology]
kind = "clusters"
count = 2
[algorithm]
name = "rdpcfl"
selection_rounds = 2
selection_epsilon = 1.5
points = "spanning"
[model]
name = "linear"
""",
    HEAD + """[privacy]
unit = "sample"
mechanism = "output"
sensitivity = "clipped_model"
noise_multiplier = 1.0
clip_norm = 0.5
delta = 1e-3
[algorithm]
name = "fedprox"
mu = 0.5
""",
    HEAD + """[privacy]
unit = "sample"
noise_multiplier = 1.0
clip_norm = 0.5
delta = 1e-3
[sampling]
clients = {scheme = "full"}
samples = {scheme = "balanced", uses = 2}
""",
)  # fmt: skip
