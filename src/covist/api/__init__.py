"""What users hold in their hands: `compress`, the handle that it returns, and the report of the last call."""
