"""The paper's efficiency protocol: the same requests under several methods, timed, next to the plain decoder."""
