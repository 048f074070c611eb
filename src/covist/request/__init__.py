"""From (images, prompt, settings) to an answer: the path that all commands, suites and benchmarks share.

loading.py   a model by name                images.py    images from files
videos.py    frames of videos
prompts.py   a question in a chat format    inputs.py    requests: the inputs of the model
tokens.py    counting visual tokens         timing.py    one request, timed
answer.py    run a request with a method    decoding.py  how answers are decoded
halving.py   batches that fail
"""
