"""`covist serve`: an OpenAI-compatible server, seen from the wire to the model.

schema.py     what clients may send             errors.py     how a refusal looks
limits.py     every limit, with its default     keys.py       who may ask
body.py       reading a body safely             app.py        the routes
images.py     images from data URLs             fetch.py      images from hosts that were allowed
settings.py   compression per request           prompts.py    a conversation as the model's inputs
sequence.py   one answer that is being written  text.py       its text, token by token
sampling.py   its next token                    queue.py      where it waits
turns.py      whose turn it is                  batches.py    workers that run batches
service.py    all of it together                spec.py       what it is built from
answers.py    what clients get back             job.py        a request, seen from the event loop
server.py     uvicorn around it                 connections.py  the address, and clients that dawdle
metrics.py    counters for Prometheus           logs.py       one line of JSON per request

Importing this package imports neither FastAPI nor torch; `covist[serve]` brings the former.
"""
