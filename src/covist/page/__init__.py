"""`covist serve --page`: a page to look at, in the same process as the server.

choice.py     what a visitor chose, and the link that restores it
examples.py   images and questions to begin with
methods.py    the methods to choose from, and what they are
asking.py     answers of the service while they are written, several at once
cards.py      answers, costs and refusals as HTML
drawings.py   what was kept, as HTML
events.py     what happens when a visitor does something
image.py      the image that a visitor drops
layout.py     the page itself, in Gradio's words
mount.py      the page in the server's application

Only events.py, image.py, layout.py and mount.py import Gradio, which `covist[page]` brings.
"""
