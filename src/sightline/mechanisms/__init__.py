"""Updates become bounded, sums carry their sensitivity, noise is added where trust ends."""

from sightline.mechanisms.by_trust import ByTrust, PooledMean
from sightline.mechanisms.central import CentralMean
from sightline.mechanisms.choose import MECHANISMS, build_mechanism
from sightline.mechanisms.clip import Aggregate, Bounded, clip, clipped_sum, sensitivity
from sightline.mechanisms.divided import divided
from sightline.mechanisms.gaussian import with_gaussian_noise
from sightline.mechanisms.local import LocalMean
from sightline.mechanisms.mechanism import Mechanism, Outcome, Scene
from sightline.mechanisms.memory import Memory, Moved, Recall, Rule, Shelf, effective_steps
from sightline.mechanisms.open import Open
from sightline.mechanisms.pace import Pace
from sightline.mechanisms.public import Public, combined, weighted
from sightline.mechanisms.samplers import SAMPLERS, Cohort, Cohorts, CohortSampler, ScheduledCohorts, build_sampler
from sightline.mechanisms.samplewise import SampleAtClient, SampleAtServer, event_of
from sightline.mechanisms.schedule import Allotment, Schedules
from sightline.mechanisms.segments import SegmentSums, segment_rate
from sightline.mechanisms.selection import Ballot, choice, sharpness
from sightline.mechanisms.splitter import Splitter, build_splitter
from sightline.mechanisms.worker import WHOLE_BATCH, Block, Left, Nodes, Occasion, PrivateSteps, Updates, Worker

__all__ = [
    "MECHANISMS",
    "SAMPLERS",
    "WHOLE_BATCH",
    "Aggregate",
    "Allotment",
    "Ballot",
    "Block",
    "Bounded",
    "ByTrust",
    "CentralMean",
    "Cohort",
    "CohortSampler",
    "Cohorts",
    "Left",
    "LocalMean",
    "Mechanism",
    "Memory",
    "Moved",
    "Nodes",
    "Occasion",
    "Open",
    "Outcome",
    "Pace",
    "PooledMean",
    "PrivateSteps",
    "Public",
    "Recall",
    "Rule",
    "SampleAtClient",
    "SampleAtServer",
    "Scene",
    "ScheduledCohorts",
    "Schedules",
    "SegmentSums",
    "Shelf",
    "Splitter",
    "Updates",
    "Worker",
    "build_mechanism",
    "build_sampler",
    "build_splitter",
    "choice",
    "clip",
    "clipped_sum",
    "combined",
    "divided",
    "effective_steps",
    "event_of",
    "segment_rate",
    "sensitivity",
    "sharpness",
    "weighted",
    "with_gaussian_noise",
]
