"""Entry point of `python -m sightline`, the same as `sightline`."""

from sightline.apps.cli.main import main

main()
