"""The methods, one file each: our own and the baselines here, those of other authors in `published`.

Methods of other authors are written from descriptions of the algorithms; none of the original code is included. The
`MethodInfo` of a method says what is as published, what is ours and what it was checked against; `covist methods NAME`
prints it.
"""
