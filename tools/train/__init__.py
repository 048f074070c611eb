"""Training that is run from a clone and is not part of the package."""
