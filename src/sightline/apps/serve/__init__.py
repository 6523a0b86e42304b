"""A local web page over the runs folder."""

from sightline.apps.serve.server import Server

__all__ = ["Server"]
