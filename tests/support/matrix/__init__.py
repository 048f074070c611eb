"""One file per family: builders of its small models and processor, its slow reference, and its `CASES`."""
