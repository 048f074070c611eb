"""A method of somebody else's, as a file that `--plugin` names."""

CODE = """
import covist


@covist.register_method
class Foremost(covist.Method):
    name = "foremost-of-all"

    def select(self, image, count):
        return list(range(count))
"""
