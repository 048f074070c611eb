"""lmms-eval and covist: the model `covist` for lmms-eval, and our suites as tasks of it.

lmms-eval --model covist --model_args pretrained=llava-hf/llava-1.5-7b-hf,budget=64,strategy=pro --tasks gqa

`plugin.py` is what lmms-eval finds, `model.py` what it calls; only these two import it.
"""
