"""``forestlens explore``: a page on this machine to ask a model about a picture and look inside."""
