"""Whom a guarantee protects, and against which change of the data."""

from enum import StrEnum


class Unit(StrEnum):
    """What is protected as a whole."""

    SAMPLE = "sample"
    CLIENT = "client"
    NONE = "none"


class Adjacency(StrEnum):
    """Which two data sets must be hard to tell apart.

    `ADD_REMOVE`: with the subject, or with its contribution zeroed out (all counts and denominators stay public).
    `REPLACE`: the subject's data exchanged for any other.
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"
