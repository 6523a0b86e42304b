"""`python -m sightline` is `sightline`."""

from sightline.cli.main import main

main()
