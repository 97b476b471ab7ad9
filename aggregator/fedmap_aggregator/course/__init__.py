"""What is to be computed for a study, and the messages that ask for it.

In: rows of a study, decisions of the course.
Out: requests and their results.
May import: store and below.
"""
