"""A proof, over a module's exported graph, that every example of a batch is treated apart from the others."""

from sightline.models.certificate.certify import certificate_of, certify_module
from sightline.models.certificate.rules import (
    BatchAxis,
    BatchPositions,
    BatchSize,
    Certificate,
    CertifiedGraph,
    Objection,
)

__all__ = [
    "BatchAxis",
    "BatchPositions",
    "BatchSize",
    "Certificate",
    "CertifiedGraph",
    "Objection",
    "certificate_of",
    "certify_module",
]
