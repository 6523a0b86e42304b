"""Privacy audits: attacks on the mechanisms that experiments run, and the lower bounds on epsilon they prove."""

from sightline.apps.audit.attack import one_run_lower, two_worlds_lower
from sightline.apps.audit.audit import Audit, audit, audit_built
from sightline.apps.audit.many_canaries import Finding

__all__ = ["Audit", "Finding", "audit", "audit_built", "one_run_lower", "two_worlds_lower"]
