"""The recipes of the embedded models: `covist.tiny.load()` and `covist.tiny.load("next")`."""
