"""The seed papers' tables next to ours."""
