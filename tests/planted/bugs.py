"""Bugs that a contributor could introduce, each as an edit of the source, and the fast tests that must notice it.

A bug is planted into a copy of `src`, never into the working tree. `test_planted.py` checks that every edit still finds
its code exactly once.
"""

from dataclasses import dataclass

from tests.planted.edits import Edit

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
ADAPTIVE = "tests/engine/test_adaptive_clipping.py"
CHAINS = "tests/engine/test_earlier_runs.py"
MORE = "tests/engine/test_more_rounds.py"


@dataclass(frozen=True)
class Bug:
    """A bug: what is wrong, how it gets in, and which fast tests notice."""

    says: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def bug(says: str, where: str, old: str, new: str, *tests: str) -> Bug:
    """A bug of one change."""
    return Bug(says, (Edit(where, old, new),), tests)


BUGS: dict[str, Bug] = {
    # streams of correlated noise
    "streams-share-noise": bug(
        "streams of different channels, and rounds made again, get the same rows of z",
        "NoiseStreams._draw_fresh",
        "self._streams.rng(Purpose.CORRELATED, round=time, participant=EVERYONE - line, use=release)",
        "self._streams.rng(Purpose.CORRELATED, round=time)",
        f"{CORRELATED}::test_a_run_publishes_the_sums_with_the_noise_of_the_dense_inverse",
        f"{CORRELATED}::test_a_round_that_was_seen_and_is_made_again_has_other_noise_and_costs_more",
    ),
    "stream-goes-on-after-restart": bug(
        "a new stream goes on from the noise of the one before",
        "CorrelatedMean.place_row",
        "divmod(sampler.step(context.time), self.stream.length)",
        "0, sampler.step(context.time)",
        f"{CORRELATED}::test_streams_share_no_noise",
    ),
    "anybody-is-asked": bug(
        "a client asked out of turn is in a release whose event does not count it",
        "TrainingRound._release_context",
        "self._check_turns(updates, channel)",
        "",
        f"{CORRELATED}::test_nobody_is_asked_out_of_turn",
    ),
    "buffers-lost": bug(
        "a run that goes on forgets the noise that it owes",
        "NoiseStreams.draw_noise",
        "find_history(row, releases)",
        "()",
        f"{CORRELATED}::test_a_crash_changes_nothing",
    ),
    "one-column": bug(
        "the sensitivity of a stream is that of one use",
        "compute_sensitivity",
        "sum_columns(np.array(strategy.coefficients), strategy.steps, separation, columns)",
        "sum_columns(np.array(strategy.coefficients), strategy.steps, separation, 1)",
        f"{CORRELATED}::test_a_stream_is_one_event_and_charged_with_its_first_round",
        f"{STRATEGIES}::test_the_sensitivity_is_the_largest_over_every_participation",
        "tests/audit/test_audit_correlated.py::test_the_sensitivity_of_one_column_only_is_caught",
    ),
    "redo-is-cheap": bug(
        "a round that was seen and is made again costs nothing that counts",
        "CorrelatedMean._event",
        "self.stream.redone",
        "100.0",
        f"{CORRELATED}::test_a_round_that_was_seen_and_is_made_again_has_other_noise_and_costs_more",
    ),
    # draws
    "poisson-reused": bug(
        "the draws of examples come back after 16384 / N steps",
        "poisson_batches",
        """
for first in range(0, steps, ahead):
    for drawn in rng.random((min(ahead, steps - first), examples)) < rate:
        yield np.flatnonzero(drawn)
""",
        """
drawn = rng.random((min(ahead, steps), examples)) < rate
for step in range(steps):
    yield np.flatnonzero(drawn[step % ahead])
""",
        f"{DRAWS}::test_examples_are_drawn_afresh_at_every_step",
    ),
    "step-noise-reused": bug(
        "the noise of private steps comes back after 16384 / d steps",
        "gaussian_steps",
        """
while True:
    block = draw_gaussian(ahead * size, rng=rng, path=path).view(ahead, size)
    # One view at a time: most clients take few steps.
    yield from (block[row] for row in range(ahead))
""",
        """
block = draw_gaussian(ahead * size, rng=rng, path=path).view(ahead, size)
while True:
    # One view at a time: most clients take few steps.
    yield from (block[row] for row in range(ahead))
""",
        f"{DRAWS}::test_noise_is_drawn_afresh_at_every_step",
    ),
    "one-draw-for-all-channels": bug(
        "all channels of a round share one draw of their members",
        "TrainingRound._draw_members",
        "self._secret.rng(Purpose.COHORT, round=self.time, use=self._draws)",
        "self._secret.rng(Purpose.COHORT, round=self.time)",
        f"{DRAWS}::test_every_channel_call_and_round_has_a_draw_of_its_own",
    ),
    "one-schedule-for-all-channels": bug(
        "all channels share one balanced schedule",
        "LiveExecution.draw_members",
        "sampler.draw(time, rng, self._schedules, line=line)",
        "sampler.draw(time, rng, self._schedules)",
        f"{DRAWS}::test_every_channel_call_and_round_has_a_draw_of_its_own",
    ),
    "one-use-too-many": bug(
        "a balanced schedule uses everybody k + 1 times",
        "ScheduleWalk.begin",
        "np.int64(allotment.uses)",
        "np.int64(allotment.uses + 1)",
        f"{DRAWS}::test_a_schedule_uses_nobody_more_often_than_it_claims",
    ),
    "drawn-too-often-at-the-server": bug(
        "examples are drawn twice as often as claimed where the server adds the noise",
        "Simulator._sum_gradients",
        "rng.random(len(shard)) < plan.rate",
        "rng.random(len(shard)) < 2 * plan.rate",
        f"{DRAWS}::test_no_example_is_drawn_more_often_than_the_server_claims",
    ),
    # claims
    "least-rate-claimed": bug(
        "the server claims the least rate of its clients",
        "SampleAtServer.plan",
        "max(self.plans.values(), key=lambda plan: plan.rate)",
        "min(self.plans.values(), key=lambda plan: plan.rate)",
        f"{DRAWS}::test_the_claimed_rate_is_the_largest_of_those_it_is_claimed_for",
    ),
    "segment-claimed-as-one-step": bug(
        "a segment of many steps is claimed as one step",
        "SegmentSums._segment_event",
        "Segment(most, max(plan.rate for plan in plans), min(1.0, first), Gaussian(self._noise_of(members)))",
        "Segment(1, max(plan.rate for plan in plans), min(1.0, first), Gaussian(self._noise_of(members)))",
        f"{DRAWS}::test_the_claimed_rate_is_the_largest_of_those_it_is_claimed_for",
    ),
    "chosen-rate-claimed": bug(
        "a participation that was chosen from released values is claimed as it was chosen",
        "ThinnedCohorts.hidden_event",
        "self.whole.hidden_event",
        "PoissonCohorts(self.population, self.rate).hidden_event",
        f"{DRAWS}::test_a_channel_claims_its_own_rate_and_no_smaller_one_that_was_chosen",
    ),
    "pool-counts-the-observer": bug(
        "the observer's own noise is counted among those that hide the others",
        "PooledMean.claim_mean",
        "Pooled(others, one.event)",
        "Pooled(others + 1, one.event)",
        f"{NOISE}::test_a_pool_has_as_many_noises_as_it_claims",
    ),
    "cohort-hides-among-the-observer": bug(
        "a client that was not drawn is counted among those whom a cohort of a fixed size came from",
        "FixedCohorts.hidden_event",
        "kind(self.size, self.population - 1, event)",
        "kind(self.size, self.population, event)",
        "tests/mechanisms/test_samplers.py::test_fixed_cohorts_never_get_poissons_numbers",
    ),
    "remembered-cohort-claimed": bug(
        "clients that remember rounds are said to be hidden in cohorts of a fixed size",
        "build.sampler_of",
        "reveal_cohorts(sampler) if algorithm.facts.remembers else sampler",
        "sampler",
        "tests/engine/test_run.py::test_who_remembers_is_not_hidden_in_a_fixed_cohort",
    ),
    "coalition-knows-one-noise": bug(
        "a coalition is said to know the noise of one of its members only",
        "against_coalition",
        "Pooled(max(1, inner.noises + 1 - parties), inner.event)",
        "inner",
        "tests/accounting/test_pooled.py::test_who_knows_which_noise",
    ),
    "only-the-cohort-chooses": bug(
        "how many choices a client of R-DPCFL makes follows from released values",
        "place_clients",
        "r.everyone()",
        "r.sample()",
        "tests/clusters/test_clusters_runs.py::test_who_is_not_in_every_round_makes_all_choices_too",
    ),
    "one-schedule-charged": bug(
        "all epochs of a schedule are charged as one",
        "ScheduledCohorts.joint_name",
        'f"schedule {self.step(time) // self.allotment.steps + 1}"',
        '"schedule 1"',
        "tests/engine/test_balanced.py::test_the_ledger_charges_the_schedule_once",
    ),
    "calibration-looks-at-one-observer": bug(
        "the noise is calibrated against the first kind of observer only",
        "needed_noise",
        "built.topology.lines.values()",
        "list(built.topology.lines.values())[:1]",
        "tests/laws/test_calibration.py::test_nobody_costs_more_than_the_target_against_anybody",
    ),
    "calibrated-to-the-least": bug(
        "the noise is calibrated to the observer who sees least",
        "needed_noise",
        "max(worst, solved[key])",
        "min(worst or solved[key], solved[key])",
        "tests/laws/test_calibration.py::test_nobody_costs_more_than_the_target_against_anybody",
    ),
    "least-noise-of-the-members": bug(
        "an edge takes the noise that its most modest member needs",
        "NoiseByTrust.at",
        "max(self.noise_multipliers(channel.members).values(), default=self.noise_multiplier)",
        "min(self.noise_multipliers(channel.members).values(), default=self.noise_multiplier)",
        f"{NOISE}::test_nobody_gets_less_noise_than_it_needs",
    ),
    # what hides
    "effort-of-the-cohort": bug(
        "SCAFFOLD's and FedDyn's public numbers come from the hidden cohort",
        "execution.work_stats",
        """
weights = dict.fromkeys(built.clients, 1.0)
share = math.fsum(s.expected for s in samplers) / sum(s.population for s in samplers)
""",
        """
weights = dict.fromkeys(cohort.members, 1.0)
share = len(cohort.members) / sum(s.population for s in samplers)
""",
        f"{DRAWS}::test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released",
    ),
    "ledger-names-the-cohort": bug(
        "the ledger names as subjects those who were drawn, and not all who could have been",
        "CentralMean.claim_mean",
        "context.make_release",
        "(lambda **more: context.make_release(subjects=frozenset(f'client-{n}' for n in updates.cohort.members), **more))",
        f"{DRAWS}::test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released",
    ),
    "traffic-counts-the-cohort": bug(
        "the traffic that a run reports tells how many were drawn",
        "CentralMean.count_senders",
        "context.sampler.expected",
        "float(len(cohort.members))",
        f"{DRAWS}::test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released",
    ),
    "divided-by-the-cohort": bug(
        "the sum is divided by those who were drawn, and not by the expected number",
        "CentralMean.mean",
        "noisy / expected",
        "noisy / max(1, len(updates.cohort.members))",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "trusted-server-knows-no-draws": bug(
        "the server is said not to know whom it drew",
        "CentralMean.claim_mean",
        "frozenset({context.channel.name})",
        "frozenset()",
        f"{DRAWS}::test_who_draws_a_cohort_is_said_to_know_it",
    ),
    # noise
    "new-mechanism-without-noise": bug(
        "a new mechanism is registered whose noise was forgotten",
        "mechanisms.registry",
        "",
        """
class QuietMean(LocalMean):
    def client_outputs(self, updates, context):
        from sightline.mechanisms.clip_and_noise import clip_update
        from sightline.mechanisms.updates import ClientOutput

        for member, update in updates.train_members():
            yield ClientOutput(member, clip_update(update, clip_norm=self.clip_norm).value)


MECHANISMS["quiet", "client", "client"] = lambda experiment, sizes, classes: QuietMean(*_client_noise(experiment))
""",
        f"{NOISE}::test_every_mechanism_is_registered_and_has_a_law_of_its_noise_and_a_case",
        "tests/audit/test_audit_registry.py::test_the_page_has_a_row_for_everything_that_is_registered",
    ),
    "output-without-noise": bug(
        "output perturbation sends the model without its noise",
        "Output.client_outputs",
        "self._as_update(noisy, updates.starts[member].value)",
        "self._as_update(result.to(noisy), updates.starts[member].value)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "objective-without-its-linear-term": bug(
        "objective perturbation forgets to hand its linear term to the solver",
        "Objective.client_outputs",
        "updates.minimise_objectives(linear=linear, gradient_tolerance=self.gradient_tolerance)",
        "updates.minimise_objectives(linear={}, gradient_tolerance=self.gradient_tolerance)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "objective-without-the-remainder": bug(
        "objective perturbation shows where its solver stopped",
        "Objective.client_outputs",
        "end.numpy() + self._cover_remainder(member, curvature, dimension, rngs[member])",
        "end.numpy()",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "noise-over-sqrt-2": bug(
        "the noise of sums is too small by the square root of two",
        "with_gaussian_noise",
        "noise_multiplier * aggregate.sensitivity",
        "noise_multiplier * aggregate.sensitivity / math.sqrt(2)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "noise-a-hundredth-too-small": bug(
        "the noise of private steps is too small by one part in a hundred",
        "LocalClients._train_privately",
        "plan.noise_multiplier * (plan.clip_norm if whole else 1.0)",
        "0.99 * plan.noise_multiplier * (plan.clip_norm if whole else 1.0)",
        f"{NOISE}::test_one_standard_normal_number_moves_a_value_by_exactly_the_claimed_deviation",
    ),
    "replace-not-doubled": bug(
        "replacing a client is taken to move a sum no further than leaving it out",
        "sum_sensitivity",
        "2 * clip_norm if adjacency is Adjacency.REPLACE else clip_norm",
        "clip_norm",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "integers-not-doubled": bug(
        "integer arithmetic forgets the adjacency",
        "GridSum.noisy_sum",
        "sum_sensitivity(float(UNITS), adjacency)",
        "float(UNITS)",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "one-noise-for-all-rounds": bug(
        "every round has the noise of the first",
        "TrainingRound._release_context_at",
        "at.round",
        "1",
        f"{NOISE}::test_it_shares_nothing_with_itself_or_with_any_other",
    ),
    "one-noise-for-all-calls": bug(
        "all training calls of a round have the same noise and draws",
        "client_rngs",
        "streams.rng(purpose, round=at.round, participant=client, use=at.use)",
        "streams.rng(purpose, round=at.round, participant=client)",
        f"{STREAMS}::test_no_stream_is_drawn_twice_and_no_two_streams_share_a_key",
    ),
    "one-noise-for-all-edges": bug(
        "the trusted edges of a tree share their noise",
        "TrainingRound._release_context_at",
        "participant if participant >= 0 else participant - at.part",
        "participant",
        f"{NOISE}::test_it_shares_nothing_with_itself_or_with_any_other",
    ),
    "unsplit-without-noise": bug(
        "the tensors that are not split get no noise in private steps",
        "Splitter.noise_scale",
        "clip_norm * self.unsplit_clip * self.unsplit_noise",
        "0.0",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "trusted-edge-without-noise": bug(
        "a trusted edge passes on its sum of segments as it is",
        "SegmentSums.mean",
        "self._add_noise(updates, context, self._local_steps(updates), noise, EVERYONE)",
        "sum((u for _, u in self._local_steps(updates)), torch.zeros(updates.worker.dimension)), 0",
        f"{NOISE}::test_it_is_normal_with_the_claimed_scale_in_every_coordinate",
    ),
    "solver-tolerance-forgotten": bug(
        "the sensitivity of a minimiser leaves out that it was found only nearly",
        "output_sensitivity",
        "moved + 2 * terms.gradient_tolerance / terms.curvature",
        "moved",
        f"{NOISE}::test_one_standard_normal_number_moves_a_value_by_exactly_the_claimed_deviation",
    ),
    "choice-costs-twice": bug(
        "a private choice is twice as sharp as its epsilon allows",
        "choice_sharpness",
        "epsilon / (largest * (2 if adjacency is Adjacency.REPLACE else 1))",
        "2 * epsilon / (largest * (2 if adjacency is Adjacency.REPLACE else 1))",
        "tests/clusters/test_clusters_selection.py::test_no_neighbour_moves_any_probability_by_more",
    ),
    "choice-without-noise": bug(
        "a private choice is the best model, always",
        "draw_choice",
        "scores + rng.gumbel(size=len(scores))",
        "scores",
        "tests/clusters/test_clusters_selection.py::test_frequencies_are_those_of_the_softmax",
    ),
    "one-noise-for-all-choices": bug(
        "all who choose draw the same noise",
        "ModelChoice.draw_choices",
        "context.noise(chooser)",
        "context.noise(0)",
        f"{STREAMS}::test_no_stream_is_drawn_twice_and_no_two_streams_share_a_key",
    ),
    "one-noise-for-a-stack": bug(
        "clients that are trained side by side share the noise of the first",
        "stacked.add_noise",
        "next(noises[member])",
        "next(noises[0]) if member == 0 else noise",
        f"{NOISE}::test_it_shares_nothing_with_itself_or_with_any_other",
    ),
    "half-the-noise-one-by-one": bug(
        "clients that are trained one by one get half of their noise",
        "descend_privately",
        "how.noise_std[client]",
        "how.noise_std[client] / 2",
        "tests/training/test_training_equals_oracle.py::test_dp_sgd",
    ),
    "edge-sees-only-sums": bug(
        "an untrusted edge is said to see its devices' messages only in a sum",
        "PooledMean.claim_mean",
        "replace(one, event=Pooled(others, one.event), coins_known_to=gatherer)",
        "replace(one, event=Pooled(others, one.event))",
        "tests/hierarchy/test_hierarchy_runs.py::test_noises_of_devices_add_up_except_for_who_gathers_them",
    ),
    # clipping and state
    "layer-not-in-the-norm": bug(
        "the norm of an example's gradient leaves out the first layer",
        "DenseStack.output_gradients",
        "range(len(self.floors) - 1, -1, -1)",
        "range(len(self.floors) - 1, 0, -1)",
        "tests/training/test_training_equals_oracle.py::test_dp_sgd",
    ),
    "own-module-in-batches": bug(
        "a module of the user's own is given whole batches when two examples in evaluation agree",
        "choose_worker",
        "unknown_part(module) is None",
        "True",
        "tests/training/test_own_modules.py::test_one_example_moves_the_clipped_sum_by_the_clip_norm_or_the_module_is_refused",
    ),
    "softmax-over-the-batch": bug(
        "the rule of softmax and running sums lets them work over the batch",
        "along_tag",
        """
if call.dim("dim", call.rank(call["self"])) == tag.dim:
    object_to(OVER_BATCH, OWN_AXES)
""",
        "",
        "tests/models/test_certificate_rules.py::test_nothing_works_over_the_batch",
    ),
    "before-and-after-swapped": bug(
        "a view says that the batch stands before what it stands behind",
        "view_tag",
        "BatchAxis(dim, left // ahead, right // behind)",
        "BatchAxis(dim, right // behind, left // ahead)",
        "tests/models/test_certificate_rules.py::test_views_that_cut_across_examples_have_no_tag",
    ),
    "gather-along-the-batch": bug(
        "the rule of gather and scatter does not ask along which axis entries move",
        "gather_tag",
        'tags or call.dim("dim", call.rank(call["self"])) == tag.dim',
        "tags",
        "tests/models/test_certificate_rules.py::test_examples_do_not_meet",
    ),
    "attention-over-the-batch": bug(
        "the rule of attention takes the batch for positions",
        "attention_tag",
        "tag.dim >= rank - 2",
        "False",
        "tests/models/test_certificate_rules.py::test_examples_do_not_meet",
    ),
    "counts-in-the-backward-pass": bug(
        "an embedding that counts tokens of the batch in its backward pass is certified",
        "embedding_tag",
        '{"scale_grad_by_freq": False, "sparse": False}',
        '{"sparse": False}',
        "tests/models/test_certificate_rules.py::test_flags_of_the_backward_pass_are_refused_also_on_fixed_places",
    ),
    "batch-size-anywhere": bug(
        "the batch size may stand in any argument, not in shapes only",
        "expects_tag",
        "name not in rule.sizes",
        "False",
        "tests/models/test_certificate_rules.py::test_the_batch_size_stands_in_shapes_only",
    ),
    "unwritten-memory-is-read": bug(
        "memory that was not written may be read",
        "tag_node",
        """
if call.name in UNWRITTEN:
    refuse_unwritten(node)
""",
        "",
        "tests/models/test_certificate_cases.py::test_the_verdict_is_right",
    ),
    "subclasses-are-known": bug(
        "a subclass of a known layer is taken for the layer",
        "_is_known",
        "KNOWN.get(kind)",
        "next((KNOWN[one] for one in kind.__mro__ if one in KNOWN), None)",
        "tests/training/test_own_modules.py::test_chains_of_torchs_own_layers_are_known_and_nothing_else_is",
    ),
    "own-module-remembers": bug(
        "what a module changed while it trained a client is not looked at",
        "GradientWorker.refuse_if_changed",
        "self.state.find_change() or change",
        "change",
        "tests/training/test_own_modules.py::test_a_memory_that_begins_later_is_refused_when_it_begins",
    ),
    "frozen-weights-travel": bug(
        "frozen parameters are clipped with, noised and sent",
        "trained_parameters",
        "((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)",
        "((name, parameter) for name, parameter in module.named_parameters())",
        "tests/models/test_models_frozen.py::test_the_vector_holds_what_is_trained",
    ),
    "momentum-of-the-client-before": bug(
        "a client begins with the momentum of the one before it",
        "local_training.train_privately_in_turn",
        "Descent.begin(run.work, run.terms, worker.weights, client)",
        "Descent.begin(run.work, run.terms, worker.weights, client) if row == 0 else descent",
        "tests/training/test_training_equals_oracle.py::test_dp_sgd",
    ),
    "kept-by-everybody": bug(
        "what one client keeps between rounds is everybody's",
        "StateAccess.old",
        "self._state.values.get(member, torch.zeros(self._dimension))",
        "next(iter(self._state.values.values()), torch.zeros(self._dimension))",
        "tests/algorithms/test_algorithms_equal_oracle.py::test_scaffold_needs_only_one_vector_when_everybody_takes_the_same_steps",
    ),
    "memory-without-its-sources": bug(
        "what a client kept from earlier rounds is not among the inputs of what it sends",
        "TrainingRound.train",
        "memory.sources | state.sources",
        "memory.sources",
        "tests/engine/test_run.py::test_what_clients_kept_is_among_the_inputs_of_what_they_send",
    ),
    "released-twice": bug(
        "the same updates may be released twice, at two scales",
        "ReleaseGate.check_first_use",
        "at in rivals or (rivals and not at.part) or replace(at, part=0) in rivals",
        "False",
        "tests/engine/test_run.py::test_updates_are_released_once",
    ),
    # loops of others
    "loop-mean-over-drawn-batch": bug(
        "a private step divides by the batch that was drawn, whose size is private",
        "PrivateTraining._noisy_gradient",
        "self.loader.expected_batch",
        "max(len(y), 1)",
        f"{LOOP}::test_with_little_noise_it_is_the_clipped_sum_over_the_expected_batch",
    ),
    "loop-noise-of-a-mean": bug(
        "the noise of a sum has the size that belongs to a mean",
        "PrivateTraining._noisy_gradient",
        "self.noise_multiplier * self.clip_norm",
        "self.noise_multiplier * self.clip_norm / self.loader.expected_batch",
        f"{LOOP}::test_a_step_is_the_clipped_sum_of_its_batch_and_noise_over_the_expected_batch",
    ),
    "loop-noise-reused": bug(
        "every private step of a loop adds the same noise",
        "PrivateTraining._noisy_gradient",
        "own_noise.rng(Purpose.NOISE, round=time)",
        "self.streams.rng(Purpose.NOISE)",
        f"{LOOP}::test_noise_is_fresh_in_every_step_and_never_that_of_another_loop",
    ),
    "loop-noise-shared": Bug(
        "two loops with one seed share their noise up to its scale",
        (
            Edit(
                "PrivateTraining._noisy_gradient",
                "own_noise.rng(Purpose.NOISE, round=time)",
                "self.streams.rng(Purpose.NOISE, round=time)",
            ),
            Edit("PrivateTraining.__init__", "self.streams = self.streams.keyed_by(*self._names(loader))", "pass"),
        ),
        (f"{LOOP}::test_loops_with_one_seed_share_no_noise",),
    ),
    "loop-batches-of-one-size": bug(
        "batches are drawn without replacement, and Poisson sampling is claimed",
        "PoissonLoader.draw",
        "np.flatnonzero(rng.random(self._examples) < self.rate)",
        "np.sort(rng.permutation(self._examples)[: round(self.expected_batch)])",
        f"{LOOP}::test_every_example_is_drawn_by_itself_at_the_claimed_rate",
    ),
    "loop-steps-twice": bug(
        "a batch can be stepped on again",
        "PrivateTraining._prepare_step",
        "self._waiting, self._given = None, ()",
        "",
        f"{LOOP}::test_a_batch_is_stepped_on_once_and_none_is_left_out",
    ),
    "loop-row-after-the-step": bug(
        "a private step is written down after it was computed",
        "PrivateTraining._prepare_step",
        """
time = self.steps.charge()
self._waiting, self._given = None, ()
gradient = self._noisy_gradient(own, x, y, counts, time)
""",
        """
self._waiting, self._given = None, ()
gradient = self._noisy_gradient(own, x, y, counts, self.steps.steps + 1)
self.steps.charge()
""",
        f"{LOOP}::test_a_step_is_on_disk_before_its_noise_exists",
    ),
    "loop-collates-together": bug(
        "a user's collate function sees all examples of a batch",
        "_Batches.__getitem__",
        "[self.collate([self.dataset[int(number)]]) for number in numbers]",
        "[self.collate([self.dataset[int(number)] for number in numbers])] if len(numbers) else []",
        f"{LOOP}::test_examples_are_collated_alone",
    ),
    "loop-collate-remembers": bug(
        "a collate function may carry one example into the next",
        "_Batches.__getitem__",
        "self._refuse_memory()",
        "",
        "tests/training/test_hidden_ways.py::test_a_collate_function_that_remembers_is_refused",
    ),
    "switch-remembers": bug(
        "a module may remember by a setting of the process",
        "GradientWorker.watched",
        "read_switches() != switches",
        "False",
        "tests/training/test_hidden_ways.py::test_switches_locks_and_orders_are_memory",
    ),
    "borrowed-ledger": bug(
        "a model file in another run's folder is charged with that run's ledger",
        "_read_chain",
        "made is not None and made != head and not record.store.has_hash(made)",
        "False",
        "tests/engine/test_earlier_runs.py::test_a_model_in_the_folder_of_another_run_does_not_borrow_its_ledger",
    ),
    "more-rounds-of-any-plan": bug(
        "a run gets more rounds although its first rounds were planned for fewer",
        "plan_longer",
        "len(whole) < len(first) or any(one.body() != whole[one.id].body() for one in first)",
        "False",
        f"{MORE}::test_a_plan_that_does_not_begin_like_the_old_one_is_refused",
    ),
    "more-rounds-go-back": bug(
        "a run with added rounds makes an old round again with another noise root",
        "reopen_run",
        '{"round": done, "since": last_change(record).since, "accepted": changes, "after": done, "wrong": ""}',
        '{"round": 0, "since": last_change(record).since, "accepted": changes, "after": done, "wrong": ""}',
        f"{MORE}::test_a_damaged_last_checkpoint_does_not_go_back_a_round",
    ),
    "own-loss-on-the-batch": bug(
        "a user's loss that keeps what it has seen passes",
        "LossWorker.watched",
        "before.find_change(self.held)",
        "None",
        "tests/training/test_own_module.py::test_what_no_clip_would_bound_is_refused",
    ),
    "ledger-takes-other-steps": bug(
        "a ledger of steps goes on with steps of another noise",
        "StepLedger.begin",
        "self.event not in (None, event)",
        "False",
        f"{LOOP}::test_other_steps_are_not_added_to_a_ledger",
    ),
    # strategies of correlated noise
    "one-epoch-of-a-round": bug(
        "an example of several epochs is charged as one of a single epoch",
        "dp_sgd.event_of",
        "-(-plan.steps // plan.groups)",
        "1",
        "tests/training/test_correlated_steps.py::test_a_round_costs_the_largest_move_of_any_example",
    ),
    "steps-of-another-stream": bug(
        "the noise of a client's steps is not correlated, and the charge is of noise that is",
        "DPSGDSettings.noise_of",
        "fresh if strategy is None else correlate_steps(strategy, fresh, size)",
        "fresh",
        "tests/training/test_correlated_steps.py::test_the_noise_of_steps_is_that_of_the_dense_inverse",
    ),
    "coefficients-that-rise": bug(
        "coefficients that rise are taken, and the worst participation is not the first one",
        "check_monotone",
        "value > before",
        "value > math.inf",
        f"{STRATEGIES}::test_coefficients_that_rise_are_refused_because_the_formula_is_wrong_for_them",
    ),
    "bands-over-groups": bug(
        "hidden draws are amplified though two turns of a subject share rows of noise",
        "charge_turns",
        "strategy.bands is None or strategy.bands > groups",
        "strategy.bands is None",
        f"{STRATEGIES}::test_hidden_draws_cost_what_quadrature_says_and_only_with_few_bands",
    ),
    "last-turn-free": bug(
        "a turn that a group has more than others is not charged",
        "charge_turns",
        "-(-strategy.steps // groups)",
        "strategy.steps // groups",
        f"{STRATEGIES}::test_every_turn_of_a_group_is_charged",
    ),
    # budgets for life
    "one-limit-for-mu-and-failures": bug(
        "failures have no limit of their own",
        "GaussianFilter.used_share",
        "max(mu_squared / self.most_mu**2, d0 / self.most_d0)",
        "mu_squared / self.most_mu**2",
        "tests/accounting/test_filters.py::test_nothing_is_admitted_that_the_direct_formula_refuses",
    ),
    "failures-for-nothing": bug(
        "the Gaussians of a filter have all of delta, and failures come on top",
        "GaussianFilter.most_mu",
        "self.delta * (1 - self.failures)",
        "self.delta",
        "tests/accounting/test_filters.py::test_the_filter_holds_against_the_same_attacker",
    ),
    "grid-points-alone": bug(
        "a composed law is compared with a Gaussian at the points of the grid, and not between them",
        "DeltaCurve.least_bound",
        "self.epsilons[1:]",
        "self.epsilons[:-1]",
        "tests/accounting/test_filters.py::test_between_the_points_of_a_coarse_grid_nothing_is_assumed",
    ),
    "old-states-answer": bug(
        "a state that is behind its counter goes on",
        "check_mark",
        "number > newest",
        "number < 0",
        "tests/runtimes/test_lifetime_budget.py::test_a_snapshot_brought_back_refuses",
    ),
    "twins-answer": bug(
        "of two copies of a state both go on",
        "check_mark",
        "marks.get(number) != head",
        "number not in marks",
        "tests/runtimes/test_lifetime_budget.py::test_two_copies_cannot_both_go_on",
    ),
    "counter-after-the-effect": bug(
        "a reservation is returned before it is counted",
        "LifetimeBudget.reserve",
        "self._confirm_counter(store)",
        "",
        "tests/runtimes/test_lifetime_budget.py::test_a_snapshot_brought_back_refuses",
    ),
    # what others bring
    "plugin-unchecked": bug(
        "a plugin's mechanism is used before its laws are checked",
        "build_experiment",
        "check_first_mechanism(experiment, federation.classes)",
        "",
        "tests/plugins/test_plugin_laws.py::test_a_mechanism_that_breaks_a_law_is_refused_before_its_first_use",
    ),
    "plugin-forgets-releases": bug(
        "a plugin's algorithm may forget what its values were made of",
        "calibrate_noise",
        "check_first_algorithm(built, lambda: follow_plan(built, rounds=ROUNDS))",
        "",
        "tests/plugins/test_plugin_laws.py::test_nothing_that_breaks_a_law_gets_as_far_as_a_run",
    ),
    "plan-left": bug(
        "an algorithm of another package releases what its plan does not have",
        "ReleaseGate.record_releases",
        "self._planned is not None",
        "False",
        f"{PLAN}::test_a_live_claim_beyond_the_plan_is_refused",
    ),
    "plan-not-charged": bug(
        "what an algorithm of another package leaves out of its plan is free",
        "ReleaseGate.charge_plan",
        "self._planned.charge_missing(self._ledger) if self._planned is not None else []",
        "list[Release]()",
        f"{PLAN}::test_what_is_left_out_of_the_plan_is_charged",
    ),
    "early-end-not-charged": bug(
        "a run that ends early states what it happened to release",
        "TrainingLoop._commit_round",
        "r.charge_plan(later=self._plan_after(after, number))",
        "r.charge_plan()",
        f"{PLAN}::test_an_early_end_states_the_bound_of_the_plan",
    ),
    "chosen-cohort-pooled": bug(
        "noises are counted of a cohort that the algorithm chose",
        "PooledMean.claim_mean",
        "context.chosen",
        "False",
        f"{PLAN}::test_noises_of_a_chosen_cohort_are_not_counted",
    ),
    "undrawn-members-hidden": bug(
        "a release that hides its cohort holds clients that were not drawn",
        "_hiding_draw",
        "set(updates.cohort.members) != drawn.members",
        "False",
        f"{PLAN}::test_a_hidden_release_is_of_exactly_the_drawn_cohort",
    ),
    "drawn-part-hidden": bug(
        "a release that hides its cohort holds a part of it",
        "_hiding_draw",
        "set(updates.cohort.members) != drawn.members",
        "set(updates.cohort.members) - drawn.members",
        f"{PLAN}::test_a_hidden_release_is_of_exactly_the_drawn_cohort",
    ),
    "hidden-cohort-readable": bug(
        "an algorithm of another package reads who was drawn",
        "TrainingRound._seals",
        "not built.foreign or built.unit is not Unit.CLIENT",
        "True",
        f"{PLAN}::test_a_hidden_cohort_cannot_be_read",
        f"{PLAN}::test_a_plain_algorithm_runs_wherever_sampling_hides",
    ),
    "hidden-cohort-open": bug(
        "a release of an algorithm of another package hides behind a cohort that it can read",
        "ReleaseGate.check_draws",
        "self._built.foreign and not sealed",
        "False",
        f"{PLAN}::test_only_a_sealed_cohort_is_hidden",
    ),
    "sealed-cohort-twice": bug(
        "a hidden cohort is released by the draw of another one",
        "ReleaseGate.take_draw",
        "any(one is mine for mine in sealed)",
        "one",
        f"{PLAN}::test_a_sealed_cohort_is_released_once_by_its_own_draw",
    ),
    "choices-tell-the-cohort": bug(
        "clients of a hidden cohort are named by what they choose",
        "TrainingRound.select_models",
        """
if isinstance(cohort, SealedCohort):
    refuse_look()
""",
        "cohort = open_sealed(cohort)[0] if isinstance(cohort, SealedCohort) else cohort",
        f"{PLAN}::test_a_hidden_cohort_cannot_be_read",
    ),
    "failed-round-not-charged": bug(
        "an algorithm of another package ends its run by an error and is charged for the rounds so far",
        "TrainingLoop._commit_round",
        "r.charge_plan(later=self.plan)",
        "pass",
        f"{PLAN}::test_whatever_ends_a_round_charges_the_whole_plan",
    ),
    "own-budget-error": bug(
        "an algorithm of another package says that the budget is exhausted, and is believed",
        "_rehearse",
        "StoppedByGate",
        "(StoppedByGate, BudgetExhausted)",
        f"{PLAN}::test_only_the_gate_ends_a_run_for_its_budget",
    ),
    "owner-outside-its-audience": bug(
        "a party that gathers need not be in its own audience",
        "_find_problems",
        "channel.name not in channel.audience",
        "channel.name in channel.members",
        "tests/plugins/test_plugin_laws.py::test_whoever_gathers_is_not_charged_nothing",
    ),
    "bottleneck-with-state": bug(
        "the bottleneck bound is taken for workers that keep state inside an interval",
        "Bottleneck.check_run",
        "begins and near[group, other]",
        "near[group, other]",
        "tests/groups/test_groups_bottleneck.py::test_other_runs_are_refused",
    ),
    "kinds-without-count": bug(
        "a site answers any number of calls of a kind that was approved with a count",
        "RunStore.refuse_spent",
        "self.begun[str(kind)] >= most",
        "False",
        "tests/flower/test_site_any_order.py::test_any_order_is_answered_and_no_more_calls_than_were_approved",
    ),
    "kinds-counted-once": bug(
        "a call of a kind is counted in memory and lost in a crash",
        "RunStore.begin",
        "self.begun + Counter([str(kind)])",
        "self.begun",
        "tests/flower/test_site_any_order.py::test_a_count_survives_a_kill",
    ),
    "kinds-are-one-question": bug(
        "a call that a crash ended is answered as another kind, which is not counted",
        "_question_hash",
        "kind is None",
        "True",
        "tests/flower/test_site_any_order.py::test_a_crashed_call_of_one_kind_is_not_answered_as_another",
    ),
    "plugin-imported-by-a-site": bug(
        "a site imports whatever plugin an experiment names",
        "_admit_experiment",
        "list_plugins(experiment)",
        "list_plugins(experiment)[:0]",
        "tests/plugins/test_plugin_commands.py::test_a_site_imports_no_plugin_that_its_owner_did_not_allow",
    ),
    "plugin-changes-unseen": bug(
        "a run goes on with another plugin than it began with",
        "_named_objects",
        "yield plugin.module, plugin.load_object()",
        "pass",
        "tests/plugins/test_plugin_names.py::test_a_changed_plugin_is_noticed_when_a_run_goes_on",
    ),
    "plugin-blind-twins": bug(
        "neighbouring worlds are not held against the claimed noise",
        "MechanismLaws._compare",
        "scale[one.source] * slack",
        "2 * scale[one.source] * slack",
        "tests/plugins/test_plugin_laws.py::test_every_lie_of_a_mechanism_is_seen_and_its_law_is_named",
    ),
    # clipping over a certified graph
    "uses-clipped-apart": bug(
        "of a tensor that is used several times only the first use is in its norm and its sum",
        "join_all",
        "parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)",
        "parts[0]",
        f"{GRAPH}::test_norms_and_clipped_sums_are_those_of_the_examples_alone",
    ),
    "tied-without-cross-term": bug(
        "the norm of a table that is the output matrix as well lacks the inner product of both gradients",
        "TiedGradients.square_norms",
        "self.output.square_norms() + self.table.square_norms() + cross",
        "self.output.square_norms() + self.table.square_norms() + 0 * cross",
        f"{GRAPH}::test_norms_and_clipped_sums_are_those_of_the_examples_alone",
    ),
    "tokens-squared-apart": bug(
        "rows of the same token are squared before they are added",
        "TableGradients.__init__",
        "ordered[:, 1:] != ordered[:, :-1]",
        "1",
        f"{GRAPH}::test_norms_and_clipped_sums_are_those_of_the_examples_alone",
    ),
    "views-not-averaged": bug(
        "the gradients of an example's views are added, so that their noise is too small by their number",
        "per_example_norms.join_views",
        "record.view(-1, views, *record.shape[1:]).mean",
        "record.view(-1, views, *record.shape[1:]).sum",
        f"{GRAPH}::test_views_of_an_example_are_averaged_before_they_are_clipped",
    ),
    "graph-lets-nan-through": bug(
        "an example that is not finite is multiplied by zero instead of being left out",
        "GraphWorker.add_clipped",
        """
if broken is not None:
    gradient.blank(broken)
""",
        "",
        f"{GRAPH}::test_hostile_values_leave_the_others_alone",
    ),
    "graph-underflow": bug(
        "a factor whose squares underflow leaves a gradient unclipped",
        "outer_squares",
        "square_norms(a), square_norms(g)",
        "square_norms(a).float(), square_norms(g).float()",
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
        "Normalisation.apply",
        "grouped.mean(axis=2, keepdims=True)",
        "grouped.mean(axis=(0, 2), keepdims=True)",
        "tests/data/test_data_features.py::test_no_example_enters_the_features_of_another",
    ),
    # what an attack left standing
    "certificate-at-five-percent": bug(
        "a certificate is wrong with a chance of 5 % in every look, and beta is claimed",
        "certify_balanced",
        "2 * ATTEMPTS / beta",
        "20",
        f"{CERTIFIED}::test_a_certificate_is_wrong_with_a_chance_of_at_most_beta",
    ),
    "certificate-of-one-direction": bug(
        "a certificate looks at one direction only",
        "verify_epsilon",
        "Backward(schedule, at).bound(draws, back, log_odds) <= delta",
        "True",
        f"{CERTIFIED}::test_both_directions_are_certified",
    ),
    "unsplit-claimed-at-least-one": bug(
        "unsplit tensors with less noise than the parts are claimed as with as much",
        "Splitter.event",
        "noise_multiplier * self.unsplit_noise",
        "noise_multiplier * max(1.0, self.unsplit_noise)",
        "tests/split/test_split_training.py::test_unsplit_tensors_are_claimed_and_noised_by_their_own_ratio",
    ),
    "weighted-parts-counted": bug(
        "a weighted draw is claimed as a draw among equally likely parts",
        "Partitions.parts",
        "sum(self.part_weights) // max(self.part_weights)",
        "len(self.part_weights)",
        "tests/accounting/test_split_worst_case.py"
        "::test_weighted_draws_and_mixtures_cost_at_most_what_the_fewest_equal_parts_do",
    ),
    "partition-with-most-parts": bug(
        "a draw among partitions is claimed as the one with the most parts",
        "Partitions.parts",
        "min(len(way) for way in self.ways)",
        "max(len(way) for way in self.ways)",
        "tests/accounting/test_split_worst_case.py"
        "::test_weighted_draws_and_mixtures_cost_at_most_what_the_fewest_equal_parts_do",
    ),
    "held-tensors-in-the-sum": bug(
        "gradients of tensors outside a named part are clipped with the unsplit ones instead of held",
        "balls_of",
        "ball_of | held",
        "ball_of",
        "tests/split/test_split_training.py::test_one_example_stays_in_its_part_and_in_both_balls",
    ),
    "silent-nodes-in-the-pool": bug(
        "noises of nodes that may not answer are counted",
        "PooledMean.claim_mean",
        "not all_answer(updates)",
        "False",
        "tests/accounting/test_pooled.py::test_noises_of_nodes_that_may_not_answer_do_not_add_up",
    ),
    # events and their composition
    "gaussians-counted-once": bug(
        "Gaussians of one noise are counted once, however many there are",
        "merged_gaussians",
        "n / e.noise_multiplier**2",
        "1 / e.noise_multiplier**2",
        f"{SCHEMES}::test_a_fixed_cohort_is_counted_against_a_client_that_was_not_drawn",
    ),
    "pool-without-its-root": bug(
        "k noises that add up count as k times one noise, not as its root",
        "compositions._",
        "math.sqrt(event.noises)",
        "event.noises",
        "tests/accounting/test_pooled.py::test_everyones_noise_hides_the_draws",
    ),
    "repeats-counted-once": bug(
        "an event that is repeated counts once",
        "compositions._",
        "times * event.times",
        "times",
        "tests/accounting/test_laws.py::test_repeating_costs_what_listing_costs",
    ),
    "adjacencies-mixed": bug(
        "events of different adjacencies are added up",
        "check_adjacency",
        "ev.WithoutReplacement in kinds and hidden",
        "False",
        "tests/accounting/test_cohorts.py::test_cohorts_under_replace_one_do_not_add_up_with_sampling_under_add_remove",
    ),
    "one-step-of-a-segment": bug(
        "the chance to be drawn in a segment is that of one of its steps",
        "chance_of_draw",
        "event.steps * event.rate",
        "event.rate",
        "tests/accounting/test_segments.py::test_a_segment_is_free_only_where_all_its_draws_are_within_delta",
    ),
    "ceiling-of-one-event": bug(
        "a composition fits when one of its counts is below a ceiling",
        "_epsilon_below",
        "all(times <= ceiling[event] for event, times in events.items())",
        "any(times <= ceiling[event] for event, times in events.items())",
        "tests/accounting/test_headroom.py::test_whatever_fits_is_within_the_limit_in_any_order_of_asking",
    ),
    "sampling-scales-the-loss": bug(
        "sampling multiplies the logarithm of the ratio, not its distance from one",
        "sampled_points",
        "np.log1p(rate * np.expm1(law.loss))",
        "rate * law.loss",
        "tests/accounting/test_oracles.py::test_one_release_against_quadrature",
    ),
    "delta-of-one-direction": bug(
        "delta is that of the forward direction",
        "pld_delta",
        "compose_losses(Sum(fit.losses_by_law(backward_losses)), order).delta(epsilon)",
        "0.0",
        "tests/accounting/test_laws.py::test_delta_and_epsilon_are_inverse",
    ),
    "choices-at-half-their-cost": bug(
        "a choice is eps^2/16-zCDP",
        "renyi._",
        "event.epsilon * event.epsilon / 8",
        "event.epsilon * event.epsilon / 16",
        "tests/accounting/test_choices.py::test_no_adversary_that_adapts_gets_more",
    ),
    "conversion-twice-corrected": bug(
        "the conversion of moments subtracts its correction twice",
        "at_orders",
        "np.log1p(-1 / a)",
        "2 * np.log1p(-1 / a)",
        "tests/accounting/test_golden.py::test_moments_reproduce_the_papers_style",
    ),
    "uses-rounded-down": bug(
        "a last use that a subject has is not counted in the sensitivity of a stream",
        "count_uses",
        "-(-steps // separation)",
        "max(1, steps // separation)",
        f"{STRATEGIES}::test_the_sensitivity_is_the_largest_over_every_participation",
    ),
    "known-schedule-used-once": bug(
        "who knows a schedule is charged with one use of it",
        "with_known_coins",
        "Repeat(event.uses, with_known_coins(event.event))",
        "with_known_coins(event.event)",
        "tests/events/test_events.py::test_who_knows_a_schedule_sees_every_use_of_it",
    ),
    "coalition-among-the-cohort": bug(
        "clients who look together are counted among those whom a cohort came from",
        "against_coalition",
        "inner.population - members",
        "inner.population",
        "tests/ledger/test_coalitions.py::test_a_coalition_of_clients_knows_who_of_it_was_drawn",
    ),
    "calculator-counts-the-observer": bug(
        "account fixed counts the client that looks among those whom the cohort came from",
        "fixed",
        "kind(cohort, clients - 1, inner) if hidden else inner",
        "kind(cohort, clients, inner)",
        f"{SCHEMES}::test_a_fixed_cohort_is_counted_against_a_client_that_was_not_drawn",
    ),
    # groups
    "bridge-moves-once": bug(
        "a worker that starts from another model moves a sum by one clip norm, not by two",
        "bridged_moments",
        "shift_probabilities(release.bridges, release.rate, 2)",
        "shift_probabilities(release.bridges, release.rate, 1)",
        "tests/groups/test_groups_bottleneck.py::test_coins_only_help_and_moments_are_exact",
    ),
    "bridge-opens-late": bug(
        "a subject is felt through others one interval later than it is",
        "Bottleneck._start_thresholds",
        "int(arrival[others].min()) + 2",
        "int(arrival[others].min()) + 3",
        "tests/groups/test_groups_bottleneck.py::test_a_bridge_is_felt_from_the_interval_after_the_subject_reached_it",
    ),
    # the ledger
    "flow-of-one-step": bug(
        "what a release was computed from does not reach those who see it",
        "View._reaches_observer",
        "[self._releases[earlier] for earlier in reached.inputs]",
        "[]",
        "tests/ledger/test_flow.py::test_flow_equals_brute_force",
    ),
    "coins-known-to-all-of-them": bug(
        "a coalition knows the draws only when each of its members does",
        "View._charge_subjects",
        "bool(self.observers & release.coins_known_to)",
        "self.observers <= release.coins_known_to",
        "tests/ledger/test_flow.py::test_known_coins_count_the_inner_event",
    ),
    "joint-round-twice": bug(
        "a round of a joint charge can be released twice",
        "check_joint",
        "before.time >= release.time",
        "before.time > release.time",
        "tests/ledger/test_draws.py::test_a_round_is_under_a_joint_charge_once",
    ),
    "rows-not-chained": bug(
        "the hash of a row knows nothing of the rows before it",
        "chain_hash",
        'head + "\\n" + body',
        "body",
        "tests/ledger/test_store.py::test_a_harmed_chain_is_noticed",
    ),
    "draw-of-another-round": bug(
        "a release may rest on a draw of another round",
        "Ledger._check_draws",
        "draw.round != release.time",
        "False",
        "tests/ledger/test_draws.py::test_a_draw_belongs_to_its_round",
    ),
    "step-over-the-budget": bug(
        "the step that exceeds a budget is taken",
        "StepLedger.fits_another",
        "self.steps + 1",
        "self.steps",
        "tests/ledger/test_step_ledger.py::test_as_many_steps_are_taken_as_the_budget_holds",
    ),
    # runs that start from runs
    "chain-of-one-run": bug(
        "of the runs behind a model only the last is counted",
        "EarlierRuns._worst_of_line",
        "[run.compositions(line.observer) for run in self.runs]",
        "[run.compositions(line.observer) for run in self.runs[:1]]",
        f"{CHAINS}::test_a_chain_counts_all_of_its_runs_also_when_the_first_are_gone",
    ),
    "start-unseen": bug(
        "who did not see an earlier model is not charged with it, though the next is computed from it",
        "EarlierRun._view",
        "view = self.ledger.view({observer, PUBLIC})",
        "pass",
        f"{CHAINS}::test_the_sum_is_the_largest_over_subjects_or_over_any_two_of_them",
    ),
    # adaptive clipping
    "count-uncharged": bug(
        "the noised count is released, and only the noise of the mean is claimed",
        "joint_event",
        "Product(tuple(Gaussian(z) for z in split_noise(noise_multiplier, count_noise)))",
        "Gaussian(split_noise(noise_multiplier, count_noise)[0])",
        f"{ADAPTIVE}::test_a_run_costs_what_it_costs_with_a_fixed_clip_norm",
    ),
    "count-half-noised": bug(
        "the count is noised for indicators of 1/2 in units of one",
        "CountingSum.noisy_count",
        "sum_sensitivity(1.0, adjacency)",
        "sum_sensitivity(0.5, adjacency)",
        f"{ADAPTIVE}::test_the_noise_of_the_count_has_the_claimed_scale",
    ),
    "broken-update-counted": bug(
        "a client whose update is not finite moves the count and is not charged for it",
        "CountingSum.add",
        "not rejected",
        "True",
        f"{ADAPTIVE}::test_a_broken_update_is_neither_inside_nor_outside",
    ),
    "count-of-no-origin": bug(
        "what is computed from a noised count does not name its release",
        "TrainingRound._open_updates",
        "numbers = self.control.released.get(channel.name)",
        "numbers = None",
        f"{ADAPTIVE}::test_a_clip_norm_names_the_releases_that_it_comes_from",
    ),
    # samplers, clipping, topology
    "schedule-used-once": bug(
        "a schedule of k uses is claimed as one of a single use",
        "Allotment.event",
        "Allocation(self.steps, self.uses, event)",
        "Allocation(self.steps, 1, event)",
        f"{SCHEMES}::test_a_calculator_says_what_the_ledger_of_a_run_claims_against_another_client",
    ),
    "clipped-from-twice-the-radius": bug(
        "updates of up to twice the clip norm are left as they are",
        "clip_update",
        "norm <= clip_norm",
        "norm <= 2 * clip_norm",
        "tests/mechanisms/test_clip.py::test_the_norm_is_bounded",
    ),
    "untrusted-nodes-unasked": bug(
        "nodes of a tree that nobody trusts are not among the observers",
        "Tree.lines",
        "self.nodes",
        "self.nodes[:0]",
        "tests/hierarchy/test_hierarchy_runs.py::test_counts_per_observer_in_closed_form",
    ),
}
