"""The command line: it parses, calls the library and prints. Nothing is decided here."""

from covist.cli.app import main

__all__ = ["main"]
