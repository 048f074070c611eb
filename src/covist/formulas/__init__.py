"""The paper as pure functions on the tensors of one image: torch only, float32, no model."""
