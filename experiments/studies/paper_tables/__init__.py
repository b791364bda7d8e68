"""The seed papers' tables beside ours."""
