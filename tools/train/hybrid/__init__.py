"""A small LLaVA over the embedded model's tower with a hybrid decoder: linear layers, full attention between them."""
