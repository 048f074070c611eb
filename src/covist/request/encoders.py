"""The encoder of a checkpoint alone: everything from images to embeddings, for engines that have their own decoder."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.utils import logging

from covist.errors import CovistError
from covist.loading import Loading
from covist.request.checkpoints import served
from covist.request.weights import hub_options


def load_encoder(name: str, loading: Loading, dtype: torch.dtype, random: bool = False) -> Any:
    """A model of transformers whose text model is only a shape: families find it, but it has no weights.

    random: whether the encoder's weights are random, too, and none are read
    """
    model_class, _, config = served(name, loading)
    vars(config).pop("quantization_config", None)  # usually of the decoder alone; otherwise weights are missing below
    text = config.get_text_config()
    layers, text.num_hidden_layers = text.num_hidden_layers, 0
    if getattr(text, "layer_types", None):
        text.layer_types = []
    built = getattr(transformers, model_class)
    model = built._from_config(config, dtype=dtype) if random else _read(built, name, loading, config, dtype)
    model.set_input_embeddings(nn.Identity())
    model.set_output_embeddings(nn.Identity())
    model.get_decoder().layers.extend(nn.Identity() for _ in range(layers))  # families count them
    return model.eval()


def _read(model_class: Any, name: str, loading: Loading, config: Any, dtype: torch.dtype) -> Any:
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it would list the decoder's weights as unexpected
    try:
        model, report = model_class.from_pretrained(
            name, config=config, dtype=dtype, output_loading_info=True, **hub_options(loading)
        )
    finally:
        logging.set_verbosity(level)
    if missing := sorted(report["missing_keys"]):
        raise CovistError(f"the encoder of model {name!r} cannot be read without its decoder: no {missing[0]}")
    return model
