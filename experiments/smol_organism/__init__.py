"""A second organism: a pretrained language model, aligned on text alone, that is taught to see by captions alone."""
