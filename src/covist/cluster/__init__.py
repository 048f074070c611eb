"""Several processes with Ray: replicas of `covist serve`, workers of `covist batch` (extra: ray).

start.py      Ray on this machine or elsewhere, and the resources of one worker
replica.py    a service in its own process           fleet.py      all replicas, as the routes see them
scaling.py    how many replicas there are            job.py        a request that a replica answers
driver.py     workers of a batch job                 errors.py     errors of Ray, in one line

Nothing else in covist imports Ray.
"""
