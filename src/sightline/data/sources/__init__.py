"""The registered sources, by name."""

from pathlib import Path

from sightline.data.federation import Source
from sightline.data.sources.images import CIFAR10, DIGITS, EMNIST_LETTERS, FASHION_MNIST, MNIST, OCR_LETTERS
from sightline.data.sources.synthetic import SYNTHETIC
from sightline.data.sources.tweets import AIRLINE_TWEETS, SENTIMENT140_USERS
from sightline.errors import did_you_mean, invalid

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        DIGITS,
        SYNTHETIC,
        MNIST,
        FASHION_MNIST,
        CIFAR10,
        EMNIST_LETTERS,
        OCR_LETTERS,
        SENTIMENT140_USERS,
        AIRLINE_TWEETS,
    )
}


def find_source(name: str) -> Source:
    """Return the source of that name; raise for an unknown one."""
    if name not in SOURCES:
        if Path(name).exists():
            invalid("data.source", name, "is not a known name, but a file or folder here", f'write "./{name}"')
        reason = "must be a known name, or your own function as package.module:function"
        invalid("data.source", name, reason, did_you_mean(name, list(SOURCES)))
    return SOURCES[name]


__all__ = ["SOURCES", "find_source"]
