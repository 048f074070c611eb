"""The Python interface: `compress`, the handle that it returns, and the report of the last call."""
