"""A local web server that shows the runs folder."""

from sightline.apps.serve.server import Server

__all__ = ["Server"]
