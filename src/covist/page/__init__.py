"""`covist serve --page`: a web page in the same process as the server.

choice.py     what a visitor chose, and the link that restores it
examples.py   images and questions to start with
methods.py    the methods to choose from, with descriptions
asking.py     answers of the service while they are generated, several at once
cards.py      answers, costs and refusals as HTML
drawings.py   what was kept, as HTML
uploads.py    the images that visitors upload, limited by number and age
events.py     the handlers of the visitor's actions
image.py      the image that a visitor uploads
layout.py     the page itself, in Gradio
gate.py       what stands before Gradio: keys, and the only requests that reach it
mount.py      adds the page to the server's application

Only events.py, image.py, layout.py and mount.py import Gradio, which `covist[page]` installs.
"""
