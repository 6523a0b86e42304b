"""Examples at the end of a command's help."""


def examples_epilog(*lines: str) -> str:
    """The epilog that shows these command lines, each given without its leading `sightline`.

    >>> examples_epilog("datasets").splitlines()[1:]
    ['Examples:', '  sightline datasets']
    """
    as_they_stand = "\b"  # click wraps a paragraph unless it opens with this
    return "\n".join([as_they_stand, "Examples:", *(f"  sightline {line}" for line in lines)])
