"""Batch jobs: many rows in, exactly one answer per id out, whatever process dies meanwhile.

rows.py      a row of the input, and its id     columns.py   the fields that answers repeat
sources.py   which source a path is             source.py    what a job requires of one
tables.py    JSON lines, JSON, CSV, Parquet     folders.py   images, and folders of them
ids.py       which ids were seen before         answers.py   an answer, and files of answers
spec.py      what a worker needs to know        worker.py    a model that answers rows
asking.py    a row's images and text            grouping.py  which rows share a batch
drivers.py   where workers run: in this process, or on Ray
store.py     the directory: parts, journals     manifest.py  what its answers depend on
job.py       blocks out, answers in             tally.py     progress, savings, reasons of failures
"""
