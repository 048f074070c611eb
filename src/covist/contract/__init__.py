"""What engine, families and methods say to each other: data and protocols, nothing that runs by itself.

signals.py      what a vision tower says about one image          families -> methods
family.py       what the engine asks of a model family            families -> engine
method.py       what the engine asks of a method                  methods  -> engine
kinds.py        the words in which methods are sorted             methods  -> lists
views.py        what a method may look at, before and in the decoder   engine -> methods
decoder.py      a frozen decoder, as far as methods read it       engine   -> methods
instruction.py  what the user asked about an image                engine   -> methods
pixels.py       the image as the encoder saw it, for display      families -> report, drawings
stages.py       what became of an image, stage by stage           engine   -> report, drawings
"""
