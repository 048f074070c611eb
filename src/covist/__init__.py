"""Training-free visual token compression for vision-language models."""
