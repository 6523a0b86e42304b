"""Events -> privacy loss -> epsilon(delta). Pure functions; upper bounds only; calibration."""

from sightline.accounting.accountant import (
    Accountant,
    Headroom,
    delta,
    epsilon,
    epsilon_curve,
    interval,
    large_delta_note,
    refuse_large_delta,
)
from sightline.accounting.calibration import Budget, BudgetLine, calibrate, share_budget
from sightline.accounting.canonical import Composition
from sightline.accounting.certified import Certificate, certify_balanced
from sightline.accounting.filters import GaussianBound, GaussianFilter, RenyiFilter
from sightline.accounting.interop import from_dp_event, to_dp_event
from sightline.accounting.renyi import renyi_divergence
from sightline.accounting.schemes import (
    SCHEMES,
    Parameter,
    Scheme,
    SchemeFamily,
    balanced,
    check_ins,
    clustered,
    convex,
    dropout,
    fixed,
    gaussian,
    poisson,
    pooled,
    register_scheme,
    segment,
    split,
)

__all__ = [
    "SCHEMES",
    "Accountant",
    "Budget",
    "BudgetLine",
    "Certificate",
    "Composition",
    "GaussianBound",
    "GaussianFilter",
    "Headroom",
    "Parameter",
    "RenyiFilter",
    "Scheme",
    "SchemeFamily",
    "balanced",
    "calibrate",
    "certify_balanced",
    "check_ins",
    "clustered",
    "convex",
    "delta",
    "dropout",
    "epsilon",
    "epsilon_curve",
    "fixed",
    "from_dp_event",
    "gaussian",
    "interval",
    "large_delta_note",
    "poisson",
    "pooled",
    "refuse_large_delta",
    "register_scheme",
    "renyi_divergence",
    "segment",
    "share_budget",
    "split",
    "to_dp_event",
]
