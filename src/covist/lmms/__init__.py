"""The model `covist` for lmms-eval, and covist's suites as tasks of lmms-eval.

lmms-eval --model covist --model_args pretrained=llava-hf/llava-1.5-7b-hf,budget=64,strategy=pro --tasks gqa

lmms-eval finds `plugin.py` and calls `model.py`; only these two import it.
"""
