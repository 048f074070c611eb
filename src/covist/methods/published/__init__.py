"""Methods of other authors, one file each."""
