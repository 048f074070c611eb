"""Many processes instead of one, with Ray: replicas of `covist serve`, workers of `covist batch` (extra: ray).

start.py      Ray on this machine or elsewhere, and what one worker may take of it
replica.py    a service in a process of its own      fleet.py      its replicas, as the routes see them
scaling.py    how many replicas there are            job.py        a request that a replica answers
driver.py     workers of a batch job                 feed.py       their rows, on the way
errors.py     what Ray says went wrong, in a line

Nothing else in covist imports Ray.
"""
