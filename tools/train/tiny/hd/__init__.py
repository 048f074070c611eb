"""The recipe of the LLaVA-NeXT, on crowded scenes."""
