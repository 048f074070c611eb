"""What became of an image: written from what the engine did, read by api and viz. Nothing here runs a model.

stages.py       what happened to an image, stage by stage
certificate.py  how well the kept tokens represent an image
films.py        whole videos, joined from their segments
pixels.py       the image as the encoder saw it, reassembled for display
"""
