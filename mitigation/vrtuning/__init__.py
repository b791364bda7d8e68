"""VRTuning-style fine-tuning: reasoning data, LoRA on the language model, a checkpoint, and the method that loads it.

Importing this package loads neither torch nor transformers; nor do ``settings``, ``data`` and ``method``.
"""
