"""The data and protocols that engine, families and methods exchange. Nothing here runs by itself.

signals.py      the vision tower's signals of one image           families -> methods
encoder.py      further layers of the vision tower to record      methods  -> families
profile.py      what a family is, without a loaded model          families -> loading, benchmarks
family.py       what the engine needs from a model family         families -> engine
text_config.py  what a configuration says about decoder layers    transformers -> engine, families
method.py       what the engine needs from a method               methods  -> engine
reading.py      where methods reduce if a layer cannot be read    methods  -> engine
kinds.py        the words by which methods are classified         methods  -> lists
views.py        what a method may read before and in the decoder  engine   -> methods
decoder.py      the parts of a frozen decoder that methods read   engine   -> methods
instruction.py  what the user asked about an image                engine   -> methods
"""
