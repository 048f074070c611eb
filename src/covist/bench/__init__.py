"""The paper's efficiency protocol: the same requests timed with several methods and with the plain decoder."""
