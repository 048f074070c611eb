"""Compression inside vLLM: an out-of-tree plugin of model classes (extra: vllm).

`covist.vllm.plugin.register` is what vLLM calls. What needs no vLLM (settings, rows, positions, towers) is in modules
of its own and runs in the ordinary tests.
"""
