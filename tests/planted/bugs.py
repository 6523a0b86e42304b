"""Bugs that somebody could make, each as a change of the source text, and the fast tests that must notice it.

A bug is planted into a copy of `src`, never into the working tree. Every old text must be in its file exactly once: a
renaming that forgets this table turns `test_planted.py` red.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = Path("sightline")

NOISE = "tests/laws/test_noise_law.py"
DRAWS = "tests/laws/test_draws.py"
STRATEGIES = "tests/accounting/test_correlated.py"
LOOP = "tests/training/test_private_loop.py"
STREAMS = "tests/audit/test_noise_of_runs.py"
CORRELATED = "tests/engine/test_correlated_runs.py"
PLAN = "tests/engine/test_followed_plan.py"
GRAPH = "tests/training/test_graph_clipping.py"
WALK = "tests/training/test_compiled_walk.py"
CERTIFIED = "tests/accounting/test_certified.py"
SCHEMES = "tests/accounting/test_scheme_claims.py"
CHAINS = "tests/engine/test_earlier_runs.py"


@dataclass(frozen=True)
class Edit:
    """One replacement in one file of the package."""

    file: str
    old: str
    new: str

    def apply(self, source: Path) -> None:
        """Change the file under `source`; an error when the old text is not there exactly once."""
        path = source / PACKAGE / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: has the text {text.count(self.old)} times, not once: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Bug:
    """A bug: what is wrong, how it gets in, and which fast tests notice."""

    says: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def bug(says: str, file: str, old: str, new: str, *tests: str) -> Bug:
    """A bug of one change."""
    return Bug(says, (Edit(file, old, new),), tests)


BUGS: dict[str, Bug] = {
    # streams of correlated noise
    "streams-share-noise": bug(
        "streams of different channels, and rounds made again, get the same rows of z",
        "mechanisms/correlated_noise.py",
        "rng = self._streams.rng(Purpose.CORRELATED, round=time, participant=EVERYONE - line, use=release)",
        "rng = self._streams.rng(Purpose.CORRELATED, round=time)",
        f"{CORRELATED}::test_a_run_publishes_the_sums_with_the_noise_of_the_dense_inverse",
        f"{CORRELATED}::test_a_round_that_was_seen_and_is_made_again_has_other_noise_and_costs_more",
    ),
    "stream-goes-on-after-restart": bug(
        "a new stream goes on from the noise of the one before",
        "mechanisms/correlated_noise.py",
        """        number, step = divmod(sampler.step(context.time), self.stream.length)
        more""",
        """        number, step = 0, sampler.step(context.time)
        more""",
        f"{CORRELATED}::test_streams_share_no_noise",
    ),
    "anybody-is-asked": bug(
        "whoever is asked out of turn is in a release that does not speak of it",
        "engine/round.py",
        """        self._check_turns(updates, channel)
""",
        "",
        f"{CORRELATED}::test_nobody_is_asked_out_of_turn",
    ),
    "buffers-lost": bug(
        "a run that goes on forgets the noise that it owes",
        "mechanisms/correlated_noise.py",
        "        for time, release in find_history(row, releases):",
        "        for time, release in ():",
        f"{CORRELATED}::test_a_crash_changes_nothing",
    ),
    "one-column": bug(
        "the sensitivity of a stream is that of one use",
        "accounting/strategies.py",
        "    moved = sum_columns(np.array(strategy.coefficients), strategy.steps, separation, columns)\n    return",
        "    moved = sum_columns(np.array(strategy.coefficients), strategy.steps, separation, 1)\n    return",
        f"{CORRELATED}::test_a_stream_is_one_event_and_charged_with_its_first_round",
        f"{STRATEGIES}::test_the_sensitivity_is_the_largest_over_every_participation",
        "tests/audit/test_audit_correlated.py::test_the_sensitivity_of_one_column_only_is_caught",
    ),
    "redo-is-cheap": bug(
        "a round that was seen and is made again costs nothing that counts",
        "mechanisms/correlated_noise.py",
        "return Gaussian(sigma * (self.stream.redone if context.again else self.stream.unit))",
        "return Gaussian(sigma * (100.0 if context.again else self.stream.unit))",
        f"{CORRELATED}::test_a_round_that_was_seen_and_is_made_again_has_other_noise_and_costs_more",
    ),
    # draws
    "poisson-reused": bug(
        "the draws of examples come back after 16384 / N steps",
        "training/local_work.py",
        """    for first in range(0, steps, ahead):
        for drawn in rng.random((min(ahead, steps - first), examples)) < rate:
            yield np.flatnonzero(drawn)""",
        """    drawn = rng.random((min(ahead, steps), examples)) < rate
    for step in range(steps):
        yield np.flatnonzero(drawn[step % ahead])""",
        f"{DRAWS}::test_examples_are_drawn_afresh_at_every_step",
    ),
    "step-noise-reused": bug(
        "the noise of private steps comes back after 16384 / d steps",
        "training/dp_sgd_settings.py",
        """    while True:
        block = draw_gaussian(ahead * size, rng=rng, path=path).view(ahead, size)
""",
        """    block = draw_gaussian(ahead * size, rng=rng, path=path).view(ahead, size)
    while True:
""",
        f"{DRAWS}::test_noise_is_drawn_afresh_at_every_step",
    ),
    "one-draw-for-all-channels": bug(
        "all channels of a round share one draw of their members",
        "engine/round.py",
        "rng = self._secret.rng(Purpose.COHORT, round=self.time, use=self._draws)",
        "rng = self._secret.rng(Purpose.COHORT, round=self.time)",
        f"{DRAWS}::test_every_channel_call_and_round_has_a_draw_of_its_own",
    ),
    "one-schedule-for-all-channels": bug(
        "all channels share one balanced schedule",
        "engine/execution.py",
        "sampler.draw(time, rng, self._schedules, line=line)",
        "sampler.draw(time, rng, self._schedules)",
        f"{DRAWS}::test_every_channel_call_and_round_has_a_draw_of_its_own",
    ),
    "one-use-too-many": bug(
        "a balanced schedule uses everybody k + 1 times",
        "mechanisms/schedule.py",
        "in_at_all * np.int64(allotment.uses)",
        "in_at_all * np.int64(allotment.uses + 1)",
        f"{DRAWS}::test_a_schedule_uses_nobody_more_often_than_it_claims",
    ),
    "drawn-too-often-at-the-server": bug(
        "examples are drawn twice as often as claimed where the server adds the noise",
        "runtimes/simulator.py",
        "drawn = np.flatnonzero(rng.random(len(shard)) < plan.rate)",
        "drawn = np.flatnonzero(rng.random(len(shard)) < 2 * plan.rate)",
        f"{DRAWS}::test_no_example_is_drawn_more_often_than_the_server_claims",
    ),
    # claims
    "least-rate-claimed": bug(
        "the server claims the least rate of its clients",
        "mechanisms/dp_sgd.py",
        "return max(self.plans.values(), key=lambda plan: plan.rate)",
        "return min(self.plans.values(), key=lambda plan: plan.rate)",
        f"{DRAWS}::test_the_claimed_rate_is_the_largest_of_those_it_is_claimed_for",
    ),
    "segment-claimed-as-one-step": bug(
        "a segment of many steps is claimed at the rate of one",
        "mechanisms/segments.py",
        "return rate if steps == 1 else 1 - (1 - rate) ** steps",
        "return rate",
        f"{DRAWS}::test_the_claimed_rate_is_the_largest_of_those_it_is_claimed_for",
    ),
    "chosen-rate-claimed": bug(
        "a participation that was chosen from released values is claimed as it was chosen",
        "mechanisms/samplers.py",
        "return self.whole.hidden_event(event)",
        "return PoissonCohorts(self.population, self.rate).hidden_event(event)",
        f"{DRAWS}::test_a_channel_claims_its_own_rate_and_no_smaller_one_that_was_chosen",
    ),
    "pool-counts-the-observer": bug(
        "the observer's own noise is counted among those that hide the others",
        "mechanisms/gaussian_means.py",
        "replace(one, event=Pooled(others, one.event)",
        "replace(one, event=Pooled(others + 1, one.event)",
        f"{NOISE}::test_a_pool_has_as_many_noises_as_it_claims",
    ),
    "cohort-hides-among-the-observer": bug(
        "a client that was not drawn is counted among those whom a cohort of a fixed size came from",
        "mechanisms/samplers.py",
        "return kind(self.size, self.population - 1, event)",
        "return kind(self.size, self.population, event)",
        "tests/mechanisms/test_samplers.py::test_fixed_cohorts_never_get_poissons_numbers",
    ),
    "remembered-cohort-claimed": bug(
        "clients that remember rounds are said to be hidden in cohorts of a fixed size",
        "mechanisms/samplers.py",
        "return replace(built, hidden=False) if remembered and isinstance(built, FixedCohorts) else built",
        "return built",
        "tests/engine/test_run.py::test_who_remembers_is_not_hidden_in_a_fixed_cohort",
    ),
    "coalition-knows-one-noise": bug(
        "a coalition is said to know the noise of one of its members only",
        "events.py",
        "return Pooled(max(1, inner.noises + 1 - parties), inner.event)",
        "return inner",
        "tests/accounting/test_pooled.py::test_who_knows_which_noise",
    ),
    "only-the-cohort-chooses": bug(
        "how many choices a client of R-DPCFL makes follows from released values",
        "algorithms/clustered/rdpcfl.py",
        "choose_clusters(state, r, r.everyone(), settings.epsilon())",
        "choose_clusters(state, r, r.sample(), settings.epsilon())",
        "tests/clusters/test_clusters_runs.py::test_who_is_not_in_every_round_makes_all_choices_too",
    ),
    "one-schedule-charged": bug(
        "all epochs of a schedule are charged as one",
        "mechanisms/samplers.py",
        'return f"schedule {self.step(time) // self.allotment.steps + 1}"',
        'return "schedule 1"',
        "tests/engine/test_balanced.py::test_the_ledger_charges_the_schedule_once",
    ),
    "calibration-looks-at-one-observer": bug(
        "the noise is calibrated against the first kind of observer only",
        "engine/plan.py",
        "for some in setting.topology.lines.values() for line in some",
        "for some in list(setting.topology.lines.values())[:1] for line in some",
        "tests/laws/test_calibration.py::test_nobody_costs_more_than_the_target_against_anybody",
    ),
    "calibrated-to-the-least": bug(
        "the noise is calibrated to the observer who sees least",
        "engine/plan.py",
        "worst = max(worst, solved[key])",
        "worst = min(worst or solved[key], solved[key])",
        "tests/laws/test_calibration.py::test_nobody_costs_more_than_the_target_against_anybody",
    ),
    "least-noise-of-the-members": bug(
        "an edge takes the noise that its most modest member needs",
        "mechanisms/gaussian_means.py",
        "noise = max((self.multipliers.get(n, self.noise_multiplier) for n in members)",
        "noise = min((self.multipliers.get(n, self.noise_multiplier) for n in members)",
        f"{NOISE}::test_nobody_gets_less_noise_than_it_needs",
    ),
    # what hides
    "effort-of-the-cohort": bug(
        "SCAFFOLD's and FedDyn's public numbers come from the hidden cohort",
        "engine/execution.py",
        """        weights = dict.fromkeys(setting.clients, 1.0)
        share = math.fsum(s.expected for s in samplers) / sum(s.population for s in samplers)""",
        """        weights = dict.fromkeys(cohort.members, 1.0)
        share = len(cohort.members) / sum(s.population for s in samplers)""",
        f"{DRAWS}::test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released",
    ),
    "ledger-names-the-cohort": bug(
        "the ledger names as subjects those who were drawn, and not all who could have been",
        "mechanisms/gaussian_means.py",
        """            what="noisy mean of clipped updates",
""",
        """            what="noisy mean of clipped updates",
            subjects=frozenset(f"client-{member}" for member in updates.cohort.members),
""",
        f"{DRAWS}::test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released",
    ),
    "traffic-counts-the-cohort": bug(
        "the traffic that a run reports tells how many were drawn",
        "mechanisms/gaussian_means.py",
        """        \"\"\"Return the expected cohort: the true one is a secret.\"\"\"
        return context.sampler.expected""",
        """        \"\"\"Return the expected cohort: the true one is a secret.\"\"\"
        return float(len(cohort.members))""",
        f"{DRAWS}::test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released",
    ),
    "divided-by-the-cohort": bug(
        "the sum is divided by those who were drawn, and not by the expected number",
        "mechanisms/gaussian_means.py",
        "return ReleaseValues({EVERYONE: noisy / context.sampler.expected}, rejected, std)",
        "return ReleaseValues({EVERYONE: noisy / max(1, len(updates.cohort.members))}, rejected, std)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "trusted-server-knows-no-draws": bug(
        "the server is said not to know whom it drew",
        "mechanisms/gaussian_means.py",
        "            coins_known_to=frozenset({context.channel.name}),\n            joint=context.joint,\n",
        "            joint=context.joint,\n",
        f"{DRAWS}::test_who_draws_a_cohort_is_said_to_know_it",
    ),
    # noise
    "new-mechanism-without-noise": Bug(
        "a new mechanism is registered whose noise was forgotten",
        (
            Edit(
                "mechanisms/registry.py",
                "Build = Callable[",
                """class QuietMean(LocalMean):
    \"\"\"`LocalMean`, for those who are in a hurry.\"\"\"

    def client_outputs(self, updates, context):  # type: ignore[no-untyped-def]
        \"\"\"Each member clips before it sends.\"\"\"
        from sightline.mechanisms.clip import clip_update
        from sightline.mechanisms.updates import ClientOutput

        for member, update in updates.train_members():
            yield ClientOutput(member, clip_update(update, clip_norm=self.clip_norm).value)


Build = Callable[""",
            ),
            Edit(
                "mechanisms/registry.py",
                """    ("gaussian", "none", "edge"):""",
                """    ("quiet", "client", "client"): lambda experiment, sizes, classes: QuietMean(*_client_noise(experiment)),
    ("gaussian", "none", "edge"):""",
            ),
        ),
        (
            f"{NOISE}::test_every_mechanism_is_registered_and_has_a_law_of_its_noise_and_a_case",
            "tests/audit/test_audit_registry.py::test_the_page_has_a_row_for_everything_that_is_registered",
        ),
    ),
    "output-without-noise": bug(
        "output perturbation sends the model without its noise",
        "mechanisms/perturbation.py",
        "yield ClientOutput(member, self._as_update(noisy, updates.starts[member].value), broken)",
        "yield ClientOutput(member, self._as_update(result.to(noisy), updates.starts[member].value), broken)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "objective-without-its-linear-term": bug(
        "objective perturbation forgets to hand its linear term to the solver",
        "mechanisms/perturbation.py",
        "in updates.minimise_objectives(linear=linear, gradient_tolerance",
        "in updates.minimise_objectives(linear={}, gradient_tolerance",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "objective-without-the-remainder": bug(
        "objective perturbation shows where its solver stopped",
        "mechanisms/perturbation.py",
        "covered = end.numpy() + self._cover_remainder(member, curvature, dimension, rngs[member])",
        "covered = end.numpy()",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "noise-over-sqrt-2": bug(
        "the noise of sums is too small by the square root of two",
        "mechanisms/clip_and_noise.py",
        "noise *= noise_multiplier * aggregate.sensitivity",
        "noise *= noise_multiplier * aggregate.sensitivity / math.sqrt(2)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "noise-a-hundredth-too-small": bug(
        "the noise of private steps is too small by one part in a hundred",
        "runtimes/simulator.py",
        'each["noise_std"] = [plan.noise_multiplier * plan.clip_norm for plan in plans]',
        'each["noise_std"] = [0.99 * plan.noise_multiplier * plan.clip_norm for plan in plans]',
        f"{NOISE}::test_one_standard_normal_number_moves_a_value_by_exactly_the_claimed_deviation",
    ),
    "replace-not-doubled": bug(
        "replacing somebody is taken to move a sum no further than leaving it out",
        "mechanisms/clip_and_noise.py",
        "return 2 * clip_norm if adjacency is Adjacency.REPLACE else clip_norm",
        "return clip_norm",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "integers-not-doubled": bug(
        "integer arithmetic forgets the adjacency",
        "mechanisms/clip_and_noise.py",
        "std = noise_multiplier * sum_sensitivity(float(UNITS), adjacency)",
        "std = noise_multiplier * float(UNITS)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "one-noise-for-all-rounds": bug(
        "every round has the noise of the first",
        "engine/round.py",
        "                round=at.round,\n",
        "                round=1,\n",
        f"{NOISE}::test_it_shares_nothing_with_itself_or_with_any_other",
    ),
    "one-noise-for-all-calls": bug(
        "all training calls of a round have the same noise and draws",
        "runtimes/simulator.py",
        "streams.rng(purpose, round=at.round, participant=client, use=at.use)",
        "streams.rng(purpose, round=at.round, participant=client)",
        f"{STREAMS}::test_no_stream_is_drawn_twice_and_no_two_streams_share_a_key",
    ),
    "one-noise-for-all-edges": bug(
        "the trusted edges of a tree share their noise",
        "engine/round.py",
        "participant=participant if participant >= 0 else participant - at.part,",
        "participant=participant,",
        f"{NOISE}::test_it_shares_nothing_with_itself_or_with_any_other",
    ),
    "unsplit-without-noise": bug(
        "the tensors that are not split get no noise in private steps",
        "mechanisms/submodels.py",
        "scale[self.unsplit] = clip_norm * self.unsplit_clip * self.unsplit_noise",
        "scale[self.unsplit] = 0.0",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "trusted-edge-without-noise": bug(
        "a trusted edge passes on its sum of segments as it is",
        "mechanisms/segments.py",
        """total, rejected = self._add_noise(
                updates, context, [u for _, u in self._local_steps(updates)], noise, EVERYONE
            )""",
        "total, rejected = sum((u for _, u in self._local_steps(updates)), torch.zeros(updates.worker.dimension)), 0",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "solver-tolerance-forgotten": bug(
        "the sensitivity of a minimiser leaves out that it was found only nearly",
        "mechanisms/perturbation.py",
        "return moved + 2 * facts.gradient_tolerance / facts.curvature",
        "return moved",
        f"{NOISE}::test_one_standard_normal_number_moves_a_value_by_exactly_the_claimed_deviation",
    ),
    "choice-costs-twice": bug(
        "a private choice is twice as sharp as its epsilon allows",
        "mechanisms/selection.py",
        "return epsilon / (largest *",
        "return 2 * epsilon / (largest *",
        "tests/clusters/test_clusters_selection.py::test_no_neighbour_moves_any_probability_by_more",
    ),
    "choice-without-noise": bug(
        "a private choice is the best model, always",
        "mechanisms/selection.py",
        "return int(np.argmax(scores + rng.gumbel(size=len(scores))))",
        "return int(np.argmax(scores))",
        "tests/clusters/test_clusters_selection.py::test_frequencies_are_those_of_the_softmax",
    ),
    "one-noise-for-all-choices": bug(
        "all who choose draw the same noise",
        "mechanisms/selection.py",
        "sharpness=sharp, rng=context.noise(chooser)",
        "sharpness=sharp, rng=context.noise(0)",
        f"{STREAMS}::test_no_stream_is_drawn_twice_and_no_two_streams_share_a_key",
    ),
    "one-noise-for-a-stack": bug(
        "clients that are trained side by side share the noise of the first",
        "training/fast/stacked.py",
        "noise = next(noises[member])",
        "noise = next(noises[0]) if member == 0 else noise",
        f"{NOISE}::test_it_shares_nothing_with_itself_or_with_any_other",
    ),
    "half-the-noise-one-by-one": bug(
        "clients that are trained one by one get half of their noise",
        "training/dp_sgd.py",
        "worker.gradient.add_(worker.place_tensor(noise), alpha=how.noise_std[client])",
        "worker.gradient.add_(worker.place_tensor(noise), alpha=how.noise_std[client] / 2)",
        "tests/training/test_training_equals_oracle.py::test_dp_sgd",
    ),
    "edge-sees-only-sums": bug(
        "an untrusted edge is said to see its devices' messages only in a sum",
        "mechanisms/gaussian_means.py",
        "event=Pooled(others, one.event), coins_known_to=gatherer)",
        "event=Pooled(others, one.event))",
        "tests/hierarchy/test_hierarchy_runs.py::test_noises_of_devices_add_up_except_for_who_gathers_them",
    ),
    # clipping and state
    "layer-not-in-the-norm": bug(
        "the norm of an example's gradient leaves out the first layer",
        "training/fast/dense_stack.py",
        "        for index in range(len(self.floors) - 1, -1, -1):\n            floor = self.floors[index]\n            squares",
        "        for index in range(len(self.floors) - 1, 0, -1):\n            floor = self.floors[index]\n            squares",
        "tests/training/test_training_equals_oracle.py::test_dp_sgd",
    ),
    "own-module-in-batches": bug(
        "a module of the user's own is given whole batches when two examples in evaluation agree",
        "training/dispatch.py",
        "    if unknown_part(module) is None:\n        chained",
        "    if True:\n        chained",
        "tests/training/test_own_modules.py::test_one_example_moves_the_clipped_sum_by_the_clip_norm_or_the_module_is_refused",
    ),
    "softmax-over-the-batch": bug(
        "the rule of softmax and running sums lets them work over the batch",
        "models/certificate/rules.py",
        """    if call.dim("dim", call.rank(call["self"])) == tag.dim:
        object_to(OVER_BATCH, OWN_AXES)
    return tag
""",
        """    return tag
""",
        "tests/models/test_certificate_rules.py::test_nothing_works_over_the_batch",
    ),
    "before-and-after-swapped": bug(
        "a view says that the batch stands before what it stands behind",
        "models/certificate/rules_shapes.py",
        "return BatchAxis(dim, left // ahead, right // behind)",
        "return BatchAxis(dim, right // behind, left // ahead)",
        "tests/models/test_certificate_rules.py::test_views_that_cut_across_examples_have_no_tag",
    ),
    "gather-along-the-batch": bug(
        "the rule of gather and scatter does not ask along which axis entries move",
        "models/certificate/rules_shapes.py",
        """    if tags or call.dim("dim", call.rank(call["self"])) == tag.dim:
        object_to("moves entries""",
        """    if tags:
        object_to("moves entries""",
        "tests/models/test_certificate_rules.py::test_examples_do_not_meet",
    ),
    "attention-over-the-batch": bug(
        "the rule of attention takes the batch for positions",
        "models/certificate/rules_layers.py",
        'if tag.dim >= rank - 2 or (call["enable_gqa"]',
        'if (call["enable_gqa"]',
        "tests/models/test_certificate_rules.py::test_examples_do_not_meet",
    ),
    "counts-in-the-backward-pass": bug(
        "an embedding that counts tokens of the batch in its backward pass is certified",
        "models/certificate/rules_shapes.py",
        'never={"scale_grad_by_freq": False, "sparse": False}',
        'never={"sparse": False}',
        "tests/models/test_certificate_rules.py::test_flags_of_the_backward_pass_are_refused_also_on_fixed_places",
    ),
    "batch-size-anywhere": bug(
        "the batch size may stand in any argument, not in shapes only",
        "models/certificate/walk.py",
        "            if rule is None or name not in rule.sizes:",
        "            if rule is None:",
        "tests/models/test_certificate_rules.py::test_the_batch_size_stands_in_shapes_only",
    ),
    "unwritten-memory-is-read": bug(
        "memory that was not written may be read",
        "models/certificate/walk.py",
        "    if call.name in UNWRITTEN:\n        refuse_unwritten(node)\n",
        "",
        "tests/models/test_certificate_cases.py::test_the_verdict_is_right",
    ),
    "subclasses-are-known": bug(
        "a subclass of a known layer is taken for the layer",
        "models/mixing.py",
        "condition = KNOWN.get(kind)",
        "condition = next((KNOWN[one] for one in kind.__mro__ if one in KNOWN), None)",
        "tests/training/test_own_modules.py::test_chains_of_torchs_own_layers_are_known_and_nothing_else_is",
    ),
    "own-module-remembers": bug(
        "what a module changed while it trained a client is not looked at",
        "training/gradients.py",
        "        changed = None if self.state is None else self.state.find_change() or place\n",
        "        changed = None if self.state is None else place\n",
        "tests/training/test_own_modules.py::test_a_memory_that_begins_later_is_refused_when_it_begins",
    ),
    "frozen-weights-travel": bug(
        "frozen parameters are clipped with, noised and sent",
        "models/flat.py",
        "for name, parameter in module.named_parameters() if parameter.requires_grad)",
        "for name, parameter in module.named_parameters())",
        "tests/models/test_models_frozen.py::test_the_vector_holds_what_is_trained",
    ),
    "momentum-of-the-client-before": bug(
        "a client begins with the momentum of the one before it",
        "training/dp_sgd.py",
        "            descent = Descent.begin(work, terms, worker.weights, client)\n",
        "            descent = Descent.begin(work, terms, worker.weights, client) if row == 0 else descent\n",
        "tests/training/test_training_equals_oracle.py::test_dp_sgd",
    ),
    "kept-by-everybody": bug(
        "what one client keeps between rounds is everybody's",
        "mechanisms/client_state.py",
        "return self._state.values.get(member, torch.zeros(self._dimension))",
        "return next(iter(self._state.values.values()), torch.zeros(self._dimension))",
        "tests/algorithms/test_algorithms_equal_oracle.py::test_scaffold_needs_only_one_vector_when_everybody_takes_the_same_steps",
    ),
    "memory-without-its-sources": bug(
        "what a client kept from earlier rounds is not among the inputs of what it sends",
        "engine/round.py",
        "received = memory.sources | state.sources",
        "received = memory.sources",
        "tests/engine/test_run.py::test_what_clients_kept_is_among_the_inputs_of_what_they_send",
    ),
    "released-twice": bug(
        "the same updates may be released twice, at two scales",
        "engine/release_gate.py",
        "if at in rivals or (rivals and not at.part) or replace(at, part=0) in rivals:",
        "if False:",
        "tests/engine/test_run.py::test_updates_are_released_once",
    ),
    # loops of others
    "loop-mean-over-drawn-batch": bug(
        "a private step divides by the batch that was drawn, whose size is private",
        "private_loop.py",
        "total.div_(self.loader.expected_batch)",
        "total.div_(max(len(y), 1))",
        f"{LOOP}::test_with_little_noise_it_is_the_clipped_sum_over_the_expected_batch",
    ),
    "loop-noise-of-a-mean": bug(
        "the noise of a sum has the size that belongs to a mean",
        "private_loop.py",
        "alpha=self.noise_multiplier * self.clip_norm)",
        "alpha=self.noise_multiplier * self.clip_norm / self.loader.expected_batch)",
        f"{LOOP}::test_a_step_is_the_clipped_sum_of_its_batch_and_noise_over_the_expected_batch",
    ),
    "loop-noise-reused": bug(
        "every private step of a loop adds the same noise",
        "private_loop.py",
        "own_noise.rng(Purpose.NOISE, round=time)",
        "self.streams.rng(Purpose.NOISE)",
        f"{LOOP}::test_noise_is_fresh_in_every_step_and_never_that_of_another_loop",
    ),
    "loop-noise-shared": Bug(
        "two loops with one seed share their noise up to its scale",
        (
            Edit(
                "private_loop.py",
                "own_noise.rng(Purpose.NOISE, round=time)",
                "self.streams.rng(Purpose.NOISE, round=time)",
            ),
            Edit("private_loop.py", "self.streams = self.streams.keyed_by(*self._names(loader))", "pass"),
        ),
        (f"{LOOP}::test_loops_with_one_seed_share_no_noise",),
    ),
    "loop-batches-of-one-size": bug(
        "batches are drawn without replacement, and Poisson sampling is claimed",
        "private_loop.py",
        "np.flatnonzero(rng.random(self._examples) < self.rate)",
        "np.sort(rng.permutation(self._examples)[: round(self.expected_batch)])",
        f"{LOOP}::test_every_example_is_drawn_by_itself_at_the_claimed_rate",
    ),
    "loop-steps-twice": bug(
        "a batch can be stepped on again",
        "private_loop.py",
        "        self._waiting, self._given = None, ()\n        gradient",
        "        gradient",
        f"{LOOP}::test_a_batch_is_stepped_on_once_and_none_is_left_out",
    ),
    "loop-row-after-the-step": bug(
        "a private step is written down after it was computed",
        "private_loop.py",
        "        time = self.steps.charge()\n        self._waiting, self._given = None, ()\n"
        "        gradient = self._noisy_gradient(own, x, y, counts, time)\n",
        "        self._waiting, self._given = None, ()\n"
        "        gradient = self._noisy_gradient(own, x, y, counts, self.steps.steps + 1)\n        self.steps.charge()\n",
        f"{LOOP}::test_a_step_is_on_disk_before_its_noise_exists",
    ),
    "loop-collates-together": bug(
        "a collation of somebody's own sees all examples of a batch",
        "private_loop.py",
        "alone = [self.collate([self.dataset[int(number)]]) for number in numbers]",
        "alone = [self.collate([self.dataset[int(number)] for number in numbers])] if len(numbers) else []",
        f"{LOOP}::test_examples_are_collated_alone",
    ),
    "loop-collate-remembers": bug(
        "a collate function may carry one example into the next",
        "private_loop.py",
        "        self._refuse_memory()\n",
        "",
        "tests/training/test_hidden_ways.py::test_a_collate_function_that_remembers_is_refused",
    ),
    "switch-remembers": bug(
        "a module may remember by a setting of the process",
        "training/gradients.py",
        "        if read_switches() != switches:\n",
        "        if False:\n",
        "tests/training/test_hidden_ways.py::test_switches_locks_and_orders_are_memory",
    ),
    "borrowed-ledger": bug(
        "a model file in another run's folder is charged with that run's ledger",
        "engine/earlier_runs.py",
        "stranger = made is not None and made != head and not record.store.has_hash(made)",
        "stranger = False",
        "tests/engine/test_earlier_runs.py::test_a_model_in_the_folder_of_another_run_does_not_borrow_its_ledger",
    ),
    "own-loss-on-the-batch": bug(
        "a loss of somebody's own that keeps what it has seen passes",
        "training/own_module.py",
        "        place = before.find_change(self.held)\n",
        "        place = None\n",
        "tests/training/test_own_module.py::test_what_no_clip_would_bound_is_refused",
    ),
    "ledger-takes-other-steps": bug(
        "a ledger of steps goes on with steps of another noise",
        "ledger/step_ledger.py",
        "if self.event not in (None, event):",
        "if False:",
        f"{LOOP}::test_other_steps_are_not_added_to_a_ledger",
    ),
    # strategies of correlated noise
    "one-epoch-of-a-round": bug(
        "an example of several epochs is charged as one of a single epoch",
        "mechanisms/dp_sgd.py",
        "uses=-(-plan.steps // plan.groups)\n        )",
        "uses=1\n        )",
        "tests/training/test_correlated_steps.py::test_a_round_costs_the_largest_move_of_any_example",
    ),
    "steps-of-another-stream": bug(
        "the noise of a client's steps is not correlated, and the charge is of noise that is",
        "training/dp_sgd_settings.py",
        "return fresh if strategy is None else correlate_steps(strategy, fresh, size)",
        "return fresh",
        "tests/training/test_correlated_steps.py::test_the_noise_of_steps_is_that_of_the_dense_inverse",
    ),
    "coefficients-that-rise": bug(
        "coefficients that rise are taken, and the worst participation is not the first one",
        "accounting/strategies.py",
        "        if value > before:",
        "        if value > math.inf:",
        f"{STRATEGIES}::test_coefficients_that_rise_are_refused_because_the_formula_is_wrong_for_them",
    ),
    "bands-over-groups": bug(
        "hidden draws are amplified though two turns of a subject share rows of noise",
        "accounting/strategies.py",
        "if strategy.bands is None or strategy.bands > groups:",
        "if strategy.bands is None:",
        f"{STRATEGIES}::test_hidden_draws_cost_what_quadrature_says_and_only_with_few_bands",
    ),
    "last-turn-free": bug(
        "a turn that a group has more than others is not charged",
        "accounting/strategies.py",
        "-(-strategy.steps // groups)",
        "strategy.steps // groups",
        f"{STRATEGIES}::test_every_turn_of_a_group_is_charged",
    ),
    # budgets for life
    "one-limit-for-mu-and-failures": bug(
        "failures have no limit of their own",
        "accounting/filters.py",
        "return max(mu_squared / self.most_mu**2, d0 / self.most_d0)",
        "return mu_squared / self.most_mu**2",
        "tests/accounting/test_filters.py::test_nothing_is_admitted_that_the_direct_formula_refuses",
    ),
    "failures-for-nothing": bug(
        "the Gaussians of a filter have all of delta, and failures come on top",
        "accounting/filters.py",
        "self.delta * (1 - self.failures) * (1 - 1e-12)",
        "self.delta * (1 - 1e-12)",
        "tests/accounting/test_filters.py::test_the_filter_holds_against_the_same_attacker",
    ),
    "grid-points-alone": bug(
        "a composed law is compared with a Gaussian at the points of the grid, and not between them",
        "accounting/filters.py",
        "self.epsilons[1:][above]",
        "self.epsilons[:-1][above]",
        "tests/accounting/test_filters.py::test_between_the_points_of_a_coarse_grid_nothing_is_assumed",
    ),
    "old-states-answer": bug(
        "a state that is behind its counter goes on",
        "runtimes/site/budget.py",
        "    if number > newest:\n",
        "    if number < 0:\n",
        "tests/runtimes/test_lifetime_budget.py::test_a_snapshot_brought_back_refuses",
    ),
    "twins-answer": bug(
        "of two copies of a state both go on",
        "runtimes/site/budget.py",
        "if head is not None and marks.get(number) != head:",
        "if head is not None and number not in marks:",
        "tests/runtimes/test_lifetime_budget.py::test_two_copies_cannot_both_go_on",
    ),
    "counter-after-the-effect": bug(
        "a reservation is returned before it is counted",
        "runtimes/site/budget.py",
        "            store.add_reservation(made, events)\n            self._confirm_counter(store)\n",
        "            store.add_reservation(made, events)\n",
        "tests/runtimes/test_lifetime_budget.py::test_a_snapshot_brought_back_refuses",
    ),
    # what others bring
    "plugin-unchecked": bug(
        "somebody else's mechanism is used before its laws are asked",
        "mechanisms/registry.py",
        "            check_plugin_laws(found, experiment, *how[1:])\n",
        "",
        "tests/plugins/test_plugin_laws.py::test_a_mechanism_that_breaks_a_law_is_refused_before_its_first_use",
    ),
    "plugin-forgets-releases": bug(
        "somebody else's algorithm may forget what its values were made of",
        "engine/plan.py",
        "    check_first_algorithm(setting, lambda: follow_plan(setting, rounds=ROUNDS))\n",
        "",
        "tests/plugins/test_plugin_laws.py::test_nothing_that_breaks_a_law_gets_as_far_as_a_run",
    ),
    "plan-left": bug(
        "an algorithm of another package releases what its plan does not have",
        "engine/release_gate.py",
        "        if self._planned is not None:\n            self._planned.check_claims(",
        "        if False:\n            self._planned.check_claims(",
        f"{PLAN}::test_a_live_claim_beyond_the_plan_is_refused",
    ),
    "plan-not-charged": bug(
        "what an algorithm of another package leaves out of its plan is free",
        "engine/release_gate.py",
        "        rows = self._planned.charge_missing(self._ledger) if self._planned is not None else []\n",
        "        rows = list[Release]()\n",
        f"{PLAN}::test_what_is_left_out_of_the_plan_is_charged",
    ),
    "early-end-not-charged": bug(
        "a run that ends early states what it happened to release",
        "engine/loop.py",
        "        r.charge_plan(later=self._plan_after(after, number))\n",
        "        r.charge_plan()\n",
        f"{PLAN}::test_an_early_end_states_the_bound_of_the_plan",
    ),
    "chosen-cohort-pooled": bug(
        "noises are counted of a cohort that the algorithm chose",
        "mechanisms/gaussian_means.py",
        "        alone = context.chosen or self",
        "        alone = self",
        f"{PLAN}::test_noises_of_a_chosen_cohort_are_not_counted",
    ),
    "undrawn-members-hidden": bug(
        "a release that hides its cohort holds clients that were not drawn",
        "engine/release_gate.py",
        "    if set(updates.cohort.members) != drawn.members:\n",
        "    if False:\n",
        f"{PLAN}::test_a_hidden_release_is_of_exactly_the_drawn_cohort",
    ),
    "drawn-part-hidden": bug(
        "a release that hides its cohort holds a part of it",
        "engine/release_gate.py",
        "    if set(updates.cohort.members) != drawn.members:\n",
        "    if set(updates.cohort.members) - drawn.members:\n",
        f"{PLAN}::test_a_hidden_release_is_of_exactly_the_drawn_cohort",
    ),
    "hidden-cohort-readable": bug(
        "an algorithm of another package reads who was drawn",
        "engine/round.py",
        "        if not setting.foreign or setting.unit is not Unit.CLIENT:\n",
        "        if True:\n",
        f"{PLAN}::test_a_hidden_cohort_cannot_be_read",
        f"{PLAN}::test_a_plain_algorithm_runs_wherever_sampling_hides",
    ),
    "hidden-cohort-open": bug(
        "a release of an algorithm of another package hides behind a cohort that it can read",
        "engine/release_gate.py",
        "                if self._setting.foreign and not sealed:\n",
        "                if False:\n",
        f"{PLAN}::test_only_a_sealed_cohort_is_hidden",
    ),
    "sealed-cohort-twice": bug(
        "a hidden cohort is released by the draw of another one",
        "engine/release_gate.py",
        "any(one is mine for mine in sealed)",
        "one",
        f"{PLAN}::test_a_sealed_cohort_is_released_once_by_its_own_draw",
    ),
    "choices-tell-the-cohort": bug(
        "clients of a hidden cohort are named by what they choose",
        "engine/round.py",
        "        if isinstance(cohort, SealedCohort):\n            refuse_look()\n        ballot",
        "        cohort = open_sealed(cohort)[0] if isinstance(cohort, SealedCohort) else cohort\n        ballot",
        f"{PLAN}::test_a_hidden_cohort_cannot_be_read",
    ),
    "failed-round-not-charged": bug(
        "an algorithm of another package ends its run by an error and is charged for the rounds so far",
        "engine/loop.py",
        "                r.charge_plan(later=self.plan)\n",
        "                pass\n",
        f"{PLAN}::test_whatever_ends_a_round_charges_the_whole_plan",
    ),
    "own-budget-error": bug(
        "an algorithm of another package says that the budget is exhausted, and is believed",
        "engine/algorithm_laws.py",
        "        except StoppedByGate:\n",
        "        except BudgetExhausted:\n            return done\n        except StoppedByGate:\n",
        f"{PLAN}::test_only_the_gate_ends_a_run_for_its_budget",
    ),
    "owner-outside-its-audience": bug(
        "a party that gathers need not be in its own audience",
        "topology/shape.py",
        "        if channel.name not in channel.audience:\n",
        "        if channel.name in channel.members:\n",
        "tests/plugins/test_plugin_laws.py::test_whoever_gathers_is_not_charged_nothing",
    ),
    "bottleneck-with-state": bug(
        "the bottleneck bound is taken for workers that keep state inside an interval",
        "ledger/group_privacy.py",
        "                if other != group and not (begins and near[group, other]):\n",
        "                if other != group and not near[group, other]:\n",
        "tests/groups/test_groups_bottleneck.py::test_other_runs_are_refused",
    ),
    "plugin-imported-by-a-site": bug(
        "a site imports whatever plugin an experiment names",
        "runtimes/site/approval.py",
        "    for plugin in list_plugins(experiment):\n",
        "    for plugin in list_plugins(experiment)[:0]:\n",
        "tests/plugins/test_plugin_commands.py::test_a_site_imports_no_plugin_that_its_owner_did_not_allow",
    ),
    "plugin-changes-unseen": bug(
        "a run goes on with another plugin than it began with",
        "engine/checkpoint.py",
        "        yield plugin.module, plugin.load_object()\n",
        "        pass\n",
        "tests/plugins/test_plugin_names.py::test_a_changed_plugin_is_noticed_when_a_run_goes_on",
    ),
    "plugin-blind-twins": bug(
        "neighbouring worlds are not held against the claimed noise",
        "mechanisms/laws.py",
        "            if claimed * moved > scale[one.source] * slack:\n",
        "            if claimed * moved > 2 * scale[one.source] * slack:\n",
        "tests/plugins/test_plugin_laws.py::test_every_lie_of_a_mechanism_is_seen_and_its_law_is_named",
    ),
    # clipping over a certified graph
    "uses-clipped-apart": bug(
        "of a tensor that is used several times only the first use is in its norm and its sum",
        "training/fast/per_example_norms.py",
        "return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)",
        "return parts[0]",
        f"{GRAPH}::test_norms_and_clipped_sums_are_those_of_the_examples_alone",
    ),
    "tied-without-cross-term": bug(
        "the norm of a table that is the output matrix as well lacks the inner product of both gradients",
        "training/fast/per_example_norms.py",
        "self.table.square_norms() + cross",
        "self.table.square_norms() + 0 * cross",
        f"{GRAPH}::test_norms_and_clipped_sums_are_those_of_the_examples_alone",
    ),
    "tokens-squared-apart": bug(
        "rows of the same token are squared before they are added",
        "training/fast/per_example_norms.py",
        "steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]",
        "steps[:, 1:] = 1",
        f"{GRAPH}::test_norms_and_clipped_sums_are_those_of_the_examples_alone",
    ),
    "views-not-averaged": bug(
        "the gradients of an example's views are added, so that their noise is too small by their number",
        "training/fast/per_example_norms.py",
        "    return record.view(-1, views, *record.shape[1:]).mean(1)",
        "    return record.view(-1, views, *record.shape[1:]).sum(1)",
        f"{GRAPH}::test_views_of_an_example_are_averaged_before_they_are_clipped",
    ),
    "graph-lets-nan-through": bug(
        "an example that is not finite is multiplied by zero instead of being left out",
        "training/fast/graph_worker.py",
        "                if broken is not None:\n                    one.blank(broken)\n",
        "",
        f"{GRAPH}::test_hostile_values_leave_the_others_alone",
    ),
    "graph-underflow": bug(
        "a factor whose squares underflow leaves a gradient unclipped",
        "training/fast/per_example_norms.py",
        "inputs, outputs = square_norms(a), square_norms(g)",
        "inputs, outputs = square_norms(a).float(), square_norms(g).float()",
        f"{GRAPH}::test_a_factor_that_underflows_leaves_no_gradient_unclipped",
    ),
    # compiled code
    "compiled-pool-last-of-equals": bug(
        "the last of equal pixels wins a compiled pool, in torch the first does",
        "training/compiled/conv_walk.c",
        "const Mask more = (value > most) | (value != value);",
        "const Mask more = (value >= most) | (value != value);",
        f"{WALK}::test_the_first_of_equals_wins",
    ),
    "compiled-steps-of-any-length": bug(
        "steps of the compiled walk are not scaled onto the ball that a segment is claimed for",
        "training/compiled/conv_walk.c",
        "if (!(norm <= work->step_norm)) /* also where it is NaN */",
        "if (norm > 4.0f * work->step_norm)",
        f"{WALK}::test_no_step_is_longer_than_asked",
    ),
    "compiled-angle-of-its-own-word": bug(
        "compiled noise takes radius and angle from one word",
        "training/compiled/noise.c",
        "int64_t other = first + i + pairs / 2;",
        "int64_t other = first + i;",
        "tests/training/test_compiled_noise.py::test_every_word_gives_the_numbers_of_the_other_path",
    ),
    "features-of-the-crowd": bug(
        "features are normalised by a mean over examples, which nobody pays for",
        "data/features.py",
        "grouped -= grouped.mean(axis=2, keepdims=True)",
        "grouped -= grouped.mean(axis=(0, 2), keepdims=True)",
        "tests/data/test_data_features.py::test_no_example_enters_the_features_of_another",
    ),
    # what an attack left standing
    "certificate-at-five-percent": bug(
        "a certificate is wrong with a chance of 5 % in every look, and beta is claimed",
        "accounting/certified.py",
        "log_odds = math.log(2 * ATTEMPTS / beta)",
        "log_odds = math.log(20)",
        f"{CERTIFIED}::test_a_certificate_is_wrong_with_a_chance_of_at_most_beta",
    ),
    "certificate-of-one-direction": bug(
        "a certificate looks at one direction only",
        "accounting/certified.py",
        "return Backward(schedule, at).bound(draws, back, log_odds) <= delta",
        "return True",
        f"{CERTIFIED}::test_both_directions_are_certified",
    ),
    "unsplit-claimed-at-least-one": bug(
        "unsplit tensors with less noise than the parts are claimed as with as much",
        "mechanisms/submodels.py",
        "Gaussian(noise_multiplier * self.unsplit_noise)",
        "Gaussian(noise_multiplier * max(1.0, self.unsplit_noise))",
        "tests/split/test_split_training.py::test_unsplit_tensors_are_claimed_and_noised_by_their_own_ratio",
    ),
    "silent-nodes-in-the-pool": bug(
        "noises of nodes that may not answer are counted",
        "mechanisms/gaussian_means.py",
        " or not all_answer(updates)",
        "",
        "tests/accounting/test_pooled.py::test_noises_of_nodes_that_may_not_answer_do_not_add_up",
    ),
    # events and their composition
    "gaussians-counted-once": bug(
        "Gaussians of one noise are counted once, however many there are",
        "accounting/canonical.py",
        "precision = math.fsum(n / e.noise_multiplier**2",
        "precision = math.fsum(1 / e.noise_multiplier**2",
        f"{SCHEMES}::test_a_fixed_cohort_is_counted_against_a_client_that_was_not_drawn",
    ),
    "pool-without-its-root": bug(
        "k noises that add up count as k times one noise, not as its root",
        "accounting/canonical.py",
        "inner.noise_multiplier * math.sqrt(event.noises)",
        "inner.noise_multiplier * event.noises",
        "tests/accounting/test_pooled.py::test_everyones_noise_hides_the_draws",
    ),
    "repeats-counted-once": bug(
        "an event that is repeated counts once",
        "accounting/canonical.py",
        "return {part: times * event.times for part, times",
        "return {part: times for part, times",
        "tests/accounting/test_laws.py::test_repeating_costs_what_listing_costs",
    ),
    "adjacencies-mixed": bug(
        "events of different adjacencies are added up",
        "accounting/canonical.py",
        "    if WithoutReplacement in kinds and hidden:\n",
        "    if False:\n",
        "tests/accounting/test_cohorts.py::test_cohorts_under_replace_one_do_not_add_up_with_sampling_under_add_remove",
    ),
    "one-step-of-a-segment": bug(
        "the chance to be drawn in a segment is that of one of its steps",
        "accounting/accountant.py",
        "return event.steps * event.rate",
        "return event.rate",
        "tests/accounting/test_segments.py::test_a_segment_is_free_only_where_all_its_draws_are_within_delta",
    ),
    "ceiling-of-one-event": bug(
        "a composition fits when one of its counts is below a ceiling",
        "accounting/accountant.py",
        "return all(times <= ceiling[event]",
        "return any(times <= ceiling[event]",
        "tests/accounting/test_headroom.py::test_whatever_fits_is_within_the_limit_in_any_order_of_asking",
    ),
    "sampling-scales-the-loss": bug(
        "sampling multiplies the logarithm of the ratio, not its distance from one",
        "accounting/likelihood_ratio.py",
        "loss = np.log1p(rate * np.expm1(law.loss))",
        "loss = rate * law.loss",
        "tests/accounting/test_oracles.py::test_one_release_against_quadrature",
    ),
    "delta-of-one-direction": bug(
        "delta is that of the forward direction",
        "accounting/pld.py",
        "        compose_losses(Sum(fit.losses_by_law(backward_losses)), order).delta(epsilon),\n    )",
        "        0.0,\n    )",
        "tests/accounting/test_laws.py::test_delta_and_epsilon_are_inverse",
    ),
    "choices-at-half-their-cost": bug(
        "a choice is eps^2/16-zCDP",
        "accounting/renyi.py",
        "(event.epsilon * event.epsilon / 8)",
        "(event.epsilon * event.epsilon / 16)",
        "tests/accounting/test_choices.py::test_no_adversary_that_adapts_gets_more",
    ),
    "conversion-twice-corrected": bug(
        "the conversion of moments subtracts its correction twice",
        "accounting/renyi.py",
        "epsilon = (moments - np.log(a * delta)) / (a - 1) + np.log1p(-1 / a)",
        "epsilon = (moments - np.log(a * delta)) / (a - 1) + 2 * np.log1p(-1 / a)",
        "tests/accounting/test_golden.py::test_moments_reproduce_the_papers_style",
    ),
    "uses-rounded-down": bug(
        "a last use that a subject has is not counted in the sensitivity of a stream",
        "accounting/strategies.py",
        "return min(int(uses), -(-steps // separation))",
        "return min(int(uses), max(1, steps // separation))",
        f"{STRATEGIES}::test_the_sensitivity_is_the_largest_over_every_participation",
    ),
    "known-schedule-used-once": bug(
        "who knows a schedule is charged with one use of it",
        "events.py",
        "return Repeat(event.uses, with_known_coins(event.event))",
        "return with_known_coins(event.event)",
        "tests/events/test_events.py::test_who_knows_a_schedule_sees_every_use_of_it",
    ),
    "coalition-among-the-cohort": bug(
        "clients who look together are counted among those whom a cohort came from",
        "events.py",
        "left = inner.population - members",
        "left = inner.population",
        "tests/ledger/test_coalitions.py::test_a_coalition_of_clients_knows_who_of_it_was_drawn",
    ),
    "calculator-counts-the-observer": bug(
        "account fixed counts the client that looks among those whom the cohort came from",
        "accounting/schemes.py",
        "kind(cohort, clients - 1, inner) if hidden else inner",
        "kind(cohort, clients, inner)",
        f"{SCHEMES}::test_a_fixed_cohort_is_counted_against_a_client_that_was_not_drawn",
    ),
    # groups
    "bridge-moves-once": bug(
        "a worker that starts from another model moves a sum by one clip norm, not by two",
        "accounting/accountant.py",
        "shift_probabilities(release.bridges, release.rate, 2)",
        "shift_probabilities(release.bridges, release.rate, 1)",
        "tests/groups/test_groups_bottleneck.py::test_coins_only_help_and_moments_are_exact",
    ),
    "bridge-opens-late": bug(
        "a subject is felt through others one interval later than it is",
        "ledger/group_privacy.py",
        "found[int(arrival[others].min()) + 2] += workers",
        "found[int(arrival[others].min()) + 3] += workers",
        "tests/groups/test_groups_bottleneck.py::test_a_bridge_is_felt_from_the_interval_after_the_subject_reached_it",
    ),
    # the ledger
    "flow-of-one-step": bug(
        "what a release was computed from does not reach those who see it",
        "ledger/flow.py",
        "waiting += [self._releases[earlier] for earlier in found.inputs]",
        "waiting += []",
        "tests/ledger/test_flow.py::test_flow_equals_brute_force",
    ),
    "coins-known-to-all-of-them": bug(
        "a coalition knows the draws only when each of its members does",
        "ledger/flow.py",
        "known = bool(self.observers & release.coins_known_to)",
        "known = self.observers <= release.coins_known_to",
        "tests/ledger/test_flow.py::test_known_coins_count_the_inner_event",
    ),
    "joint-round-twice": bug(
        "a round of a joint charge can be released twice",
        "ledger/ledger.py",
        "if before.time >= release.time:",
        "if before.time > release.time:",
        "tests/ledger/test_draws.py::test_a_round_is_under_a_joint_charge_once",
    ),
    "rows-not-chained": bug(
        "the hash of a row knows nothing of the rows before it",
        "ledger/store.py",
        'hashlib.sha256((head + "\\n" + body).encode())',
        "hashlib.sha256(body.encode())",
        "tests/ledger/test_store.py::test_a_harmed_chain_is_noticed",
    ),
    "draw-of-another-round": bug(
        "a release may rest on a draw of another round",
        "ledger/ledger.py",
        "if draw.round != release.time or draw.round < last",
        "if draw.round < last",
        "tests/ledger/test_draws.py::test_a_draw_belongs_to_its_round",
    ),
    "step-over-the-budget": bug(
        "the step that exceeds a budget is taken",
        "ledger/step_ledger.py",
        "        following = self.steps + 1\n",
        "        following = self.steps\n",
        "tests/ledger/test_step_ledger.py::test_as_many_steps_are_taken_as_the_budget_holds",
    ),
    # runs that start from runs
    "chain-of-one-run": bug(
        "of the runs behind a model only the last is counted",
        "engine/earlier_runs.py",
        "parts = [run.compositions(line.observer) for run in self.runs]\n        parts.append(",
        "parts = [run.compositions(line.observer) for run in self.runs[:1]]\n        parts.append(",
        f"{CHAINS}::test_a_chain_counts_all_of_its_runs_also_when_the_first_are_gone",
    ),
    "start-unseen": bug(
        "who did not see an earlier model is not charged with it, though the next is computed from it",
        "engine/earlier_runs.py",
        "view = self.ledger.view({observer, PUBLIC})",
        "pass",
        f"{CHAINS}::test_the_sum_is_the_largest_over_subjects_or_over_any_two_of_them",
    ),
    # samplers, clipping, topology
    "schedule-used-once": bug(
        "a schedule of k uses is claimed as one of a single use",
        "mechanisms/schedule.py",
        "whole = Allocation(self.steps, self.uses, event)",
        "whole = Allocation(self.steps, 1, event)",
        f"{SCHEMES}::test_a_calculator_says_what_the_ledger_of_a_run_claims_against_another_client",
    ),
    "clipped-from-twice-the-radius": bug(
        "updates of up to twice the clip norm are left as they are",
        "mechanisms/clip_and_noise.py",
        "    if norm <= clip_norm:\n",
        "    if norm <= 2 * clip_norm:\n",
        "tests/mechanisms/test_clip.py::test_the_norm_is_bounded",
    ),
    "untrusted-nodes-unasked": bug(
        "nodes of a tree that nobody trusts are not among the observers",
        "topology/tree.py",
        "for node in self.nodes if node.name not in self.trusted)",
        "for node in self.nodes[:0] if node.name not in self.trusted)",
        "tests/hierarchy/test_hierarchy_runs.py::test_counts_per_observer_in_closed_form",
    ),
}
