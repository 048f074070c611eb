"""`covist serve`: an OpenAI-compatible server, from the HTTP request to the model.

schema.py     what clients may send             errors.py     the form of a refusal
limits.py     every limit, with its default     keys.py       API keys
body.py       reading a body safely             app.py        the routes
presence.py   what ends a request early         room.py       bytes and pixels that requests share
admission.py  from a request to its prompt      fetch.py      images from allowed hosts
images.py     images, measured and decoded      videos.py     videos, likewise
capacity.py   tokens that fit                   constraint.py answers that must be JSON
tools.py      functions that a model may call   openapi.py    the schema of requests and answers
settings.py   compression per request           prompts.py    a conversation as the model's inputs
sequence.py   one answer being generated        text.py       its text, token by token
sampling.py   its next token                    queue.py      where it waits
turns.py      turns of batches at the model     batches.py    workers that run batches
service.py    all of it together                spec.py       what it is built from
answers.py    what clients receive              job.py        a request, seen from the event loop
server.py     the uvicorn server                connections.py  the address, and slow clients
metrics.py    counters for Prometheus           logs.py       one line of JSON per request

Importing this package imports neither FastAPI nor torch; `covist[serve]` installs the former.
"""
