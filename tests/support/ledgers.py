"""What a compressed cache knows about its keys."""

from covist.engine.sequence.cache import book_of


def ledgers(cache):
    """The ledger of every layer, in order."""
    return [book_of(cache).ledger(layer).flushed() for layer in range(len(cache.layers))]


def keys_at(cache, layer=0):
    """The keys of a layer: rows, positions, validity, images and weights."""
    return ledgers(cache)[layer].keys
