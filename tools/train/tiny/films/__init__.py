"""The recipe of the embedded video model, `covist.load_model("tiny-video")`."""
