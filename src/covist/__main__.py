"""`python -m covist` is the `covist` command."""

from covist.cli import main

main()
