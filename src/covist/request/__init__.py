"""From (images, prompt, settings) to an answer: the one way that commands, suites and benchmarks take.

loading.py   a model by name                images.py    images from files
videos.py    frames of videos
prompts.py   a question in a chat format    inputs.py    requests: what the model is given
tokens.py    counting visual tokens         timing.py    one request, timed
answer.py    run a request under a method
"""
