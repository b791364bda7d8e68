"""What the command line says beside any study: its help, mistakes in a sentence, and ``task=doctor``.

Imports neither torch nor transformers.
"""
