"""`python -m sightline` is `sightline`."""

from sightline.apps.cli.main import main

main()
