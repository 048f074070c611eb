"""The methods, one file each.

Those of other authors are written from descriptions of the algorithms; none of the originals' code is in here. What of
a method is as published, what is ours and what it was checked against stands in its `MethodInfo`, which `covist methods
NAME` prints.
"""
