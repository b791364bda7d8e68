"""``+exp=localise``: which heads and MLPs carry the picture, and which the sentence, found and confirmed apart."""
