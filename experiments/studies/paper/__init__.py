"""A finished run as a paper needs it: tables, figures, methods, references, and how to get the same numbers."""
