"""What only a model that thinks first can be asked: when was it decided, and does the thought carry the picture?"""
