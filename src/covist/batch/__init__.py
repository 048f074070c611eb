"""Batch jobs: many rows in, exactly one answer per id out, whatever dies on the way.

rows.py      a row of the input, and its id     sources.py   JSONL, Parquet, a folder of images
ids.py       which ids were seen before         answers.py   an answer, and files of answers
spec.py      what a worker needs to know        worker.py    a model that answers rows
asking.py    a row's images and words           grouping.py  which rows share a batch
drivers.py   who runs workers: this process, or Ray
store.py     the directory: parts, journals     manifest.py  what its answers hang on
job.py       blocks out, answers in             tally.py     how far it is, and what it saved
"""
