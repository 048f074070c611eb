"""The command line. It parses, calls the library and prints; nothing is decided here."""

from covist.cli.app import main

__all__ = ["main"]
