"""The question-answering model: load it with checks, cut windows, fine-tune, predict spans."""
