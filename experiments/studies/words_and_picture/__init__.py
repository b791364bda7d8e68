"""Does a model that knows the answer in words, and sees the thing, judge by the picture?"""
