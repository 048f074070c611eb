"""Compression inside vLLM: an out-of-tree plugin of model classes (extra: vllm).

vLLM calls `covist.vllm.plugin.register`. Code that does not need vLLM (settings, items, rows, attention, towers) is in
separate modules and runs in the ordinary tests.
"""
