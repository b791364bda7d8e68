"""What the command line says without a study: its help, mistakes in a sentence, and ``task=doctor``.

Imports neither torch nor transformers.
"""
