"""A Hugging Face Space: the server and its page, on the port that Spaces use.

`python app.py` does the same on any machine; options of `covist serve` may follow (`python app.py --model tiny-next`).
"""

import sys

from covist.cli import main

sys.argv = ["covist", "serve", "--page", "--host", "0.0.0.0", "--port", "7860", *sys.argv[1:]]
main()
